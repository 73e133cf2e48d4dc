"""Reference pages, manual and schemas, made from the code."""
