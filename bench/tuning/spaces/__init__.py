"""Search spaces, their dimensions without effect, and the samplers that draw from them."""
