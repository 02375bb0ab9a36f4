"""spanpool.umbp under the name that SGLang's UMBPDirectLinker and vLLM's connector import."""
from spanpool.umbp import *  # noqa: F401,F403
