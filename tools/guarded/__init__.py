"""What planwarden knows of the calls that hosts make themselves: their tools, and what a command line runs and proves.

Pure tables and functions, which the policy and the guard both need. Nothing here runs a tool of a host.
"""
