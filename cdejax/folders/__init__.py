"""Model folders as others wrote them: found, opened, and every key accounted for."""
