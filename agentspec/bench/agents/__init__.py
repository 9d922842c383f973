"""Whether an agent gets work done: small worlds, tasks in them, and the systems that are set to them."""
