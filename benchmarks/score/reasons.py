"""Where a vector has no counterpart in planwarden, and why; and where planwarden decides otherwise on purpose."""

from collections.abc import Mapping

_CONTRACT = "the record names no known contract: a matter of the record's format, which planwarden does not read"
_RELEASES = "planwarden has no history of policies: a question holds the policy's digest, and another one asks again"
_INSIDE = "planwarden sees the call, not what its program does, loads or is made of"
_LATER = "no order between calls and edits: a plan says in its steps what must run after what"
_OBSERVER = "planwarden has no outside observer: its own log of the calls that it made is the evidence"
_DELEGATION = "a grant of planwarden cannot be passed on"
_FRESHNESS = "planwarden reads the grant from the store in the transaction of the call, and has no copy that could age"
_CONTRACTS = {"contract-id-missing": _CONTRACT, "contract-id-unknown": _CONTRACT}

NO_AXIS: Mapping[str, Mapping[str, str]] = {
    "approval-binding": {
        **_CONTRACTS,
        "approval-id-reused-different-content": "nobody presents an approval: planwarden makes ids and looks them up",
        "approval-key-not-approvers": "an approval names no key: a security key is looked up by its own id",
        "event-differs": "an approval is about a call, and there is no other event",
        "phase-differs": "an approval is about a call, and there is no other phase",
        "release-lookup-unavailable": _RELEASES,
        "release-first-served-after-decision": _RELEASES,
        "release-retired-beyond-grace": _RELEASES,
        "allow-release-first-served-at-decision": _RELEASES,
        "allow-release-within-grace": _RELEASES,
    },
    "authority-at-dispatch": {
        **_CONTRACTS,
        "stale-authority-evidence": _FRESHNESS,
        "evidence-age-inconsistent": _FRESHNESS,
        "allow-evidence-age-at-limit": _FRESHNESS,
        "scope-amplified-across-hops": _DELEGATION,
        "allow-two-hop-narrowing": _DELEGATION,
    },
    "dispatch-fence": {
        **_CONTRACTS,
        "fence-rereads-state": "each write names the version that it was decided on; none can be made without",
        "declared-runtime-exceeds-ttl": "a tool declares no running time: its process renews the lease while it lives",
    },
    "converted-argument-binding": {
        **_CONTRACTS,
        "approver-edited-in-place": "an approver gets no object that runs: the stored bytes run",
    },
    "spoofed-tool-output": {
        "no-claims": "a step that requires no tool promises nothing that could be proven",
        "completion-not-claimed": "planwarden proves that a tool succeeded, not that one failed",
        "completion-claimed-after-an-honest-failure": "planwarden proves that a tool succeeded, not that one failed",
        "known-limit-edit-inside-the-claimed-command": _INSIDE,
        **dict.fromkeys(
            (
                "run-before-the-last-edit",
                "run-before-an-edit-by-another-command",
                "edit-of-a-test-after-the-run",
                "edit-outside-the-workspace-after-the-run",
                "worst-claim-unmatched-over-stale",
            ),
            _LATER,
        ),
        **dict.fromkeys(
            (
                "interpreter-the-agent-wrote",
                "import-path-into-the-workspace",
                "pytest-options-in-the-environment",
                "plugin-written-onto-the-import-path",
                "module-under-test-on-the-import-path",
                "own-cache-writes-do-not-stale-the-run",
                "sealed-run-matches",
                "sealed-run-other-executable",
                "sealed-run-other-directory",
            ),
            _INSIDE,
        ),
        **dict.fromkeys(
            (
                "coverage-incomplete-fabrication",
                "coverage-unknown-fabrication",
                "tracer-stopped-by-the-agent",
                "tracer-paused-by-the-agent",
                "exec-not-visible",
                "mutation-type-not-visible",
                "observation-self-reported",
                "observer-is-the-agent",
                "capability-from-another-observer",
                "claims-from-another-invocation",
                "observation-of-another-interval",
                "no-visible-acceptance",
            ),
            _OBSERVER,
        ),
    },
}

_SPELLING = "another command line is another call, which proves nothing about the first: stricter than the vector"
_LAPSED = "a lease that ran out is lost when another process takes it, and nobody had: one writer, as the law asks"
DIFFERS: Mapping[str, Mapping[str, str]] = {
    "dispatch-fence": {"tool-outlives-hold": _LAPSED, "commit-after-own-hold-expired": _LAPSED},
    "spoofed-tool-output": {
        "same-run-spelled-another-way": _SPELLING,
        "same-run-stopping-at-the-first-failure": _SPELLING,
    },
}
