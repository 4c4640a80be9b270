"""The name under which verifiers finds `agent_envs.adapters.verifiers`: `vf-eval agent-envs-verifiers`."""

from agent_envs.adapters.verifiers import *  # noqa: F403
from agent_envs.adapters.verifiers import __all__ as __all__
