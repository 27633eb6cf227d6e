-- audit_of_tasks   finds what clients were told of an execution as a task, or answered without deciding; see `task_rows`.
--                  Few executions have such rows, and the others cost nothing here.

CREATE INDEX audit_of_tasks ON audit (execution_id) WHERE kind IN ('form_closed', 'link_answered', 'task_ended');
