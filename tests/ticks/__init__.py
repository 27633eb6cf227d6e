"""Ticks of schedules over two processes that are killed at random: each starts one run (`make ticks`)."""
