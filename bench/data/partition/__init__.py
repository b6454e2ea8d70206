"""How the images of a data set are dealt to clients."""
