-- `append_one` writes one transaction of one execution, after it has checked everything that the transaction relies on.
-- What is refused has written nothing, so that many appends share one transaction; the reason is returned, not raised.
-- Of what an append has none, `a` has no field: looking for it costs more than writing the rest.
-- `present` and `steady` are the store's clock, as Unix seconds and as the seconds that leases run by.

-- `check_holdings` returns why what an append wants of budgets and business keys is refused, or nothing. `h` is as
-- `planwarden.storage.postgres.append` describes it. Who calls it holds the locks of those budgets and keys.

CREATE FUNCTION check_holdings(h jsonb, present double precision) RETURNS jsonb LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    wanted jsonb;
    spent double precision;
    counted bigint;
    lacking double precision;
    lacking_count bigint;
    room_at double precision;
    other record;
BEGIN
    FOR wanted IN SELECT value FROM jsonb_array_elements(h->'wanted') LOOP
        SELECT coalesce(sum(s.amount), 0), count(*) INTO spent, counted FROM budget_shares AS s
        WHERE s.budget = wanted->>'budget' AND s.ends_at > present AND NOT wanted->'free' ? s.holder;
        lacking := spent + (wanted->>'amount')::double precision - (wanted->>'most')::double precision;
        lacking_count := counted + (wanted->>'count')::bigint - (wanted->>'most_count')::bigint;
        IF lacking > 0 OR lacking_count > 0 THEN
            SELECT min(e.ends_at) INTO room_at FROM (
                SELECT s.ends_at, sum(s.amount) OVER ended AS amount, count(*) OVER ended AS count FROM budget_shares AS s
                WHERE s.budget = wanted->>'budget' AND s.ends_at > present AND NOT wanted->'free' ? s.holder
                WINDOW ended AS (ORDER BY s.ends_at, s.number)
            ) AS e WHERE e.amount >= lacking AND e.count >= lacking_count;
            RETURN jsonb_build_object(
                'outcome', 'budget spent', 'budget', wanted->>'budget', 'room_at', room_at, 'left',
                CASE WHEN lacking_count > 0 THEN 0 ELSE greatest((wanted->>'limit')::double precision - spent, 0) END
            );
        END IF;
    END LOOP;
    FOR wanted IN SELECT value FROM jsonb_array_elements(h->'keys') LOOP
        SELECT k.* INTO other FROM once_keys AS k WHERE k.key = wanted->>'key' AND k.ends_at > present;
        IF FOUND AND NOT wanted->'free' ? other.holder THEN
            RETURN jsonb_build_object(
                'outcome', 'duplicate effect',
                'row', jsonb_build_array(other.key, other.tool_name, other.fields, other.holder, other.principal,
                                         other.taken_at, other.ends_at)
            );
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- What was checked in the same transaction.
CREATE FUNCTION write_holdings(h jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM budget_shares AS s WHERE s.holder IN (SELECT jsonb_array_elements_text(h->'freed'));
    DELETE FROM once_keys AS k WHERE k.holder IN (SELECT jsonb_array_elements_text(h->'freed'));
    INSERT INTO budget_shares AS s (budget, holder, amount, ends_at)
    SELECT value->>0, value->>1, (value->>2)::double precision, (value->>3)::double precision
    FROM jsonb_array_elements(h->'shares')
    ON CONFLICT (holder, budget) DO UPDATE
    SET amount = excluded.amount, ends_at = greatest(s.ends_at, excluded.ends_at);
    INSERT INTO once_keys AS k (key, tool_name, fields, holder, principal, taken_at, ends_at)
    SELECT value->>'key', value->>'tool_name', value->>'fields', value->>'holder', value->>'principal',
           (value->>'taken_at')::double precision, (value->>'ends_at')::double precision
    FROM jsonb_array_elements(h->'keys')
    ON CONFLICT (key) DO UPDATE
    SET tool_name = excluded.tool_name, fields = excluded.fields, holder = excluded.holder,
        principal = excluded.principal, taken_at = excluded.taken_at,
        ends_at = greatest(k.ends_at, excluded.ends_at);
END
$$;

CREATE FUNCTION append_one(a jsonb, present double precision, steady double precision, lease_s double precision,
                           OUT outcome text, OUT fence bigint, OUT detail jsonb) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held executions%ROWTYPE;
    wanted jsonb;
    expected bigint := (a->>'expected')::bigint;
    writer text := a->>'owner';
    releases boolean := (a->>'release')::boolean;
    acquires boolean := (a->>'acquire')::boolean;
    new_status text := a->>'status';
    is_over boolean := new_status IN ('completed', 'rejected', 'failed', 'incomplete', 'cancelled', 'rehearsed');
    new_owner text;
    holds boolean := false;
    expiry double precision;
    asked record;
    -- A calendar day in UTC, as grants for steps of saved plans count.
    today bigint := floor(present / 86400)::bigint;
BEGIN
    IF acquires AND expected > 0 AND a->>'lease_fence' IS NULL THEN
        -- Refused without a lock: giving that back would wait for the disk.
        SELECT * INTO held FROM executions AS x WHERE x.execution_id = a->>'execution_id';
        IF held.owner IS NOT NULL AND held.version = expected THEN
            outcome := 'lease lost';
            RETURN;
        END IF;
    END IF;
    SELECT * INTO held FROM executions AS x WHERE x.execution_id = a->>'execution_id' FOR UPDATE;
    IF held.number IS NOT NULL AND EXISTS (
        SELECT FROM events AS e
        WHERE e.execution = held.number AND e.first = expected + 1 AND e.token = a->>'token'
    ) THEN
        outcome := 'stored';
        fence := held.fence;
        RETURN;
    END IF;

    IF a ? 'guards' THEN
        FOR wanted IN SELECT value FROM jsonb_array_elements(a->'guards') LOOP
            SELECT s.status, s.digest, s.expires_at INTO asked FROM suspensions AS s
            WHERE s.suspension_id = wanted->>'suspension_id';
            IF NOT FOUND OR asked.status <> 'pending' OR asked.digest <> wanted->>'digest' THEN
                outcome := 'not pending';
                detail := wanted;
                RETURN;
            END IF;
            expiry := asked.expires_at;
            IF wanted->>'deadline' <> 'any'
               AND (expiry IS NOT NULL AND expiry <= present) <> (wanted->>'deadline' = 'passed') THEN
                outcome := CASE WHEN expiry IS NOT NULL AND expiry <= present THEN 'expired' ELSE 'not expired' END;
                detail := wanted;
                RETURN;
            END IF;
        END LOOP;
    END IF;

    IF a ? 'start' THEN
        -- Of two that start the same plan at the same moment, the second one waits for the first one's commit.
        IF a->'start'->>'plan' IS NOT NULL AND (a->'start'->>'is_only')::boolean THEN
            PERFORM pg_advisory_xact_lock(hashtextextended(a->>'principal' || E'\n' || (a->'start'->>'plan'), 1));
        END IF;
        IF a->'start'->>'key' IS NOT NULL THEN
            PERFORM pg_advisory_xact_lock(hashtextextended(a->>'principal' || E'\n' || (a->'start'->>'key'), 2));
            IF EXISTS (SELECT FROM starts AS s WHERE s.principal = a->>'principal' AND s.key = a->'start'->>'key') THEN
                outcome := 'key used';
                RETURN;
            END IF;
        END IF;
        IF a->'start'->>'after' IS NOT NULL THEN
            -- Of two that go on from the same execution at the same moment, the second one waits for the first one's commit.
            PERFORM FROM executions AS x WHERE x.execution_id = a->'start'->>'after' FOR UPDATE;
            SELECT x.execution_id, x.version INTO asked FROM executions AS x
            WHERE x.thread_id = a->>'thread_id' ORDER BY x.number DESC LIMIT 1;
            IF NOT FOUND OR asked.execution_id <> a->'start'->>'after'
               OR asked.version <> (a->'start'->>'after_version')::bigint THEN
                outcome := 'thread moved on';
                RETURN;
            END IF;
        END IF;
        IF a->'start'->>'plan' IS NOT NULL AND (a->'start'->>'is_only')::boolean THEN
            SELECT jsonb_build_array(
                x.execution_id, x.thread_id, (SELECT s.key FROM starts AS s WHERE s.execution = x.number LIMIT 1)
            ) INTO detail FROM executions AS x
            -- `|| ''` keeps the planner, while the table has no statistics, from walking all executions of the principal.
            WHERE x.plan_digest = a->'start'->>'plan' AND x.principal || '' = a->>'principal' ORDER BY x.number + 0 LIMIT 1;
            IF FOUND THEN
                outcome := 'plan unfinished';
                RETURN;
            END IF;
        END IF;
    END IF;

    IF a ? 'uses' THEN
        FOR wanted IN SELECT value FROM jsonb_array_elements(a->'uses') ORDER BY value->>0 LOOP
            PERFORM FROM grants AS g
            WHERE g.grant_id = wanted->>0 AND g.expires_at > present AND g.revoked_at IS NULL
              AND g.uses - g.used + CASE WHEN g.step IS NULL THEN 0 WHEN g.used_on < today THEN g.used ELSE g.used_before END
                  >= (wanted->>1)::bigint
            FOR UPDATE;
            IF NOT FOUND THEN
                outcome := 'grant used up';
                detail := wanted;
                RETURN;
            END IF;
        END LOOP;
    END IF;

    IF a ? 'holdings' THEN
        detail := check_holdings(a->'holdings', present);
        IF detail IS NOT NULL THEN
            outcome := detail->>'outcome';
            RETURN;
        END IF;
    END IF;

    IF expected = 0 THEN
        IF held.number IS NOT NULL THEN
            outcome := 'exists';
            RETURN;
        END IF;
        holds := acquires AND NOT releases;
        INSERT INTO executions (execution_id, thread_id, principal, status, version, created_at, updated_at, owner, fence,
                                leased_until, plan_digest, step_count, steps_done, ended_at)
        VALUES (a->>'execution_id', a->>'thread_id', a->>'principal', new_status, (a->>'version')::bigint, present,
                present, CASE WHEN holds THEN writer END, 1, CASE WHEN holds THEN steady + lease_s ELSE 0 END,
                CASE WHEN NOT is_over THEN a->'start'->>'plan' END, (a->'progress'->>'step_count')::bigint,
                (a->'progress'->>'steps_done')::bigint, CASE WHEN is_over THEN present END)
        ON CONFLICT DO NOTHING RETURNING * INTO held;
        IF NOT FOUND THEN
            PERFORM FROM executions AS x WHERE x.execution_id = a->>'execution_id';
            outcome := CASE WHEN FOUND THEN 'exists' ELSE 'thread busy' END;
            RETURN;
        END IF;
        fence := 1;
    ELSE
        IF held.number IS NULL THEN
            outcome := 'unknown';
            RETURN;
        END IF;
        IF a->>'lease_fence' IS NOT NULL THEN
            IF held.owner IS DISTINCT FROM a->>'lease_owner' OR held.fence <> (a->>'lease_fence')::bigint THEN
                outcome := 'lease lost';
                RETURN;
            END IF;
        ELSIF acquires AND held.owner IS NOT NULL AND held.version = expected THEN
            outcome := 'lease lost';
            RETURN;
        END IF;
        IF held.version <> expected THEN
            outcome := 'version';
            detail := jsonb_build_array(held.version);
            RETURN;
        END IF;
        IF NOT is_over AND held.ended_at IS NOT NULL AND EXISTS (
            SELECT FROM executions AS x WHERE x.thread_id = held.thread_id AND x.ended_at IS NULL
        ) THEN
            outcome := 'thread busy';
            RETURN;
        END IF;
        IF a->>'lease_fence' IS NOT NULL OR acquires THEN
            holds := NOT releases;
            new_owner := CASE WHEN holds THEN coalesce(a->>'lease_owner', writer) END;
            fence := held.fence + CASE WHEN a->>'lease_fence' IS NULL THEN 1 ELSE 0 END;
            expiry := CASE WHEN holds THEN steady + lease_s ELSE 0 END;
        ELSE
            new_owner := held.owner;
            fence := held.fence;
            expiry := held.leased_until;
        END IF;
        UPDATE executions AS x
        SET status = new_status, version = (a->>'version')::bigint, updated_at = present, owner = new_owner,
            leased_until = expiry, fence = append_one.fence, ended_at = CASE WHEN is_over THEN present END,
            plan_digest = CASE WHEN is_over THEN NULL ELSE x.plan_digest END,
            step_count = coalesce((a->'progress'->>'step_count')::bigint, x.step_count),
            steps_done = coalesce((a->'progress'->>'steps_done')::bigint, x.steps_done)
        WHERE x.number = held.number;
    END IF;

    INSERT INTO events (execution, first, at, body, checksum, token)
    VALUES (held.number, expected + 1, (a->>'at')::double precision, a->>'body', (a->>'checksum')::bigint, a->>'token');
    IF a->'start'->>'key' IS NOT NULL THEN
        INSERT INTO starts (principal, key, execution, request)
        VALUES (a->>'principal', a->'start'->>'key', held.number, a->'start'->>'request');
    END IF;

    IF a ? 'rows' THEN
        FOR wanted IN SELECT value FROM jsonb_array_elements(a->'rows') LOOP
            CASE wanted->>'change'
            WHEN 'opened' THEN
                INSERT INTO suspensions (suspension_id, execution, addressee, risk_rank, status, digest, created_at, expires_at,
                                         alarm_at)
                VALUES (wanted->>'suspension_id', held.number, wanted->>'addressee', (wanted->>'risk_rank')::bigint,
                        'pending', wanted->>'digest',
                        (a->>'at')::double precision, (wanted->>'expires_at')::double precision,
                        (wanted->>'alarm_at')::double precision);
            WHEN 'revised' THEN
                UPDATE suspensions AS s
                SET digest = wanted->>'digest', risk_rank = (wanted->>'risk_rank')::bigint,
                    expires_at = (wanted->>'expires_at')::double precision,
                    alarm_at = (wanted->>'alarm_at')::double precision
                WHERE s.suspension_id = wanted->>'suspension_id' AND s.status = 'pending';
            WHEN 'reminded' THEN
                UPDATE suspensions AS s SET alarm_at = (wanted->>'alarm_at')::double precision
                WHERE s.suspension_id = wanted->>'suspension_id' AND s.status = 'pending';
            WHEN 'closed' THEN
                UPDATE suspensions AS s SET status = wanted->>'status', closed_at = (wanted->>'at')::double precision
                WHERE s.suspension_id = wanted->>'suspension_id' AND s.status = 'pending';
            WHEN 'used' THEN
                UPDATE grants AS g SET used = g.used + 1, used_on = greatest(g.used_on, today),
                                       used_before = CASE WHEN g.used_on < today THEN g.used ELSE g.used_before END
                WHERE g.grant_id = wanted->>'grant_id';
            WHEN 'synopsis' THEN
                INSERT INTO synopses (execution, title, is_goal, host, saved_plan, tools, fault, search)
                VALUES (held.number, wanted->>'title', (wanted->>'is_goal')::boolean, wanted->>'host', wanted->>'saved_plan',
                        wanted->>'tools', '', wanted->>'search')
                ON CONFLICT (execution) DO UPDATE
                SET title = excluded.title, is_goal = excluded.is_goal, host = excluded.host,
                    saved_plan = excluded.saved_plan, tools = excluded.tools, search = excluded.search;
            WHEN 'fault' THEN
                UPDATE synopses AS s SET fault = wanted->>'fault'
                WHERE s.execution = held.number AND s.fault <> wanted->>'fault';
            WHEN 'withdrawn' THEN
                UPDATE suspensions AS s SET status = 'withdrawn', closed_at = (wanted->>'at')::double precision
                WHERE s.execution = held.number AND s.status = 'pending';
            END CASE;
        END LOOP;
    END IF;

    IF a ? 'holdings' THEN
        PERFORM write_holdings(a->'holdings');
    END IF;

    IF a ? 'audit' THEN
        INSERT INTO audit_unsealed (at, kind, execution_id, suspension_id, facts, policy)
        SELECT (a->>'at')::double precision, value->>0, value->>1, value->>2, value->>3, value->>4
        FROM jsonb_array_elements(a->'audit');
    END IF;
    IF a ? 'artifacts' THEN
        INSERT INTO artifacts (execution, artifact_id, media_type, data)
        SELECT held.number, value->>0, value->>1, decode(value->>2, 'base64') FROM jsonb_array_elements(a->'artifacts')
        ON CONFLICT DO NOTHING;
    END IF;
    IF a ? 'notifications' THEN
        INSERT INTO notifications (notification_id, channel, kind, execution_id, suspension_id, facts, created_at, attempts,
                                   next_at)
        SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, (value->>6)::double precision, 0,
               (value->>6)::double precision
        FROM jsonb_array_elements(a->'notifications');
    END IF;
    outcome := 'stored';
END
$$;

-- Appends of one transaction. They lock their executions in the same order everywhere, so that two processes do not wait
-- for each other.
CREATE FUNCTION append_all(appends jsonb, now_s double precision, steady_s double precision, lease_s double precision)
RETURNS TABLE (place bigint, outcome text, fence bigint, detail jsonb) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    present double precision := coalesce(now_s, extract(epoch FROM clock_timestamp()));
    steady double precision := coalesce(steady_s, extract(epoch FROM clock_timestamp()));
    swept_s CONSTANT double precision := 7 * 86400;
    holds boolean := appends @? '$[*].holdings';
    a jsonb;
BEGIN
    IF holds THEN
        -- Those who want of the same budget or key wait here for each other's commit, before they lock anything else,
        -- and all in the same order.
        PERFORM pg_advisory_xact_lock(hashtextextended('holdings ' || l.number, 3)) FROM (
            SELECT DISTINCT jsonb_path_query(appends, '$[*].holdings.locks[*]')::bigint AS number ORDER BY number
        ) AS l;
    END IF;
    FOR a, place IN
        SELECT value, ordinality FROM jsonb_array_elements(appends) WITH ORDINALITY
        ORDER BY value->>'execution_id', ordinality
    LOOP
        SELECT o.outcome, o.fence, o.detail INTO outcome, fence, detail FROM append_one(a, present, steady, lease_s) AS o;
        RETURN NEXT;
    END LOOP;
    IF holds THEN
        -- A few rows that are long over; last, so that nothing else is waited for with their locks held.
        DELETE FROM once_keys WHERE number IN (
            SELECT number FROM once_keys WHERE ends_at <= present - swept_s ORDER BY ends_at LIMIT 16
            FOR UPDATE SKIP LOCKED);
        DELETE FROM budget_shares WHERE number IN (
            SELECT number FROM budget_shares WHERE ends_at <= present - swept_s ORDER BY ends_at LIMIT 16
            FOR UPDATE SKIP LOCKED);
    END IF;
END
$$;
