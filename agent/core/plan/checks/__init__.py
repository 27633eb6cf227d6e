"""What can be wrong with a plan, one module for each subject; `plan_parser` calls them.

Checks here see the JSON of a plan or its steps, and facts about tools. They raise `InvalidPlan`, or return the faults.
"""
