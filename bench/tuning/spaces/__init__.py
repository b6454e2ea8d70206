"""Search spaces, and the samplers that draw from them."""
