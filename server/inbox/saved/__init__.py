"""The pages of saved plans and their schedules: a person starts a plan here, and can neither write nor change one."""
