"""A configuration tried without a model: what each filter does to a request, and whether cases hold."""
