"""The pages of saved plans and their schedules: a person starts a plan here, and keeps that of a finished run as a new one; no page changes one."""
