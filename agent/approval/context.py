"""What every judgement about a call looks at: the tools, the operator's policy, the grants, time and ids."""

from collections.abc import Mapping

import msgspec

from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.core.pointers import ArtifactPart, PartAddress
from planwarden.agent.ports.environment import Clock, Ids
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.toolbox import Toolbox


class ApprovalContext(msgspec.Struct, frozen=True, kw_only=True):
    """One for each engine; the functions of this folder take it and hold no state of their own."""

    tools: Toolbox
    policy: Policy
    clock: Clock
    ids: Ids
    grants: GrantCache
    parts: Mapping[PartAddress, ArtifactPart] | None = msgspec.field(default_factory=dict[PartAddress, ArtifactPart])
    """Parts of artifacts that references may take, as far as they were read. None while a call runs."""
