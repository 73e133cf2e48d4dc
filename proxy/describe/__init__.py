"""What filters and configurations say of themselves: pages, a schema, lists."""
