"""The way to the model and back."""
