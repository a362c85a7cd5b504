"""The roles of a chat's messages, efforts of reasoning, and the most that a chat may have of everything."""

# By what chat templates call them.
SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES = {SYSTEM: SYSTEM, "developer": SYSTEM, USER: USER, ASSISTANT: ASSISTANT, TOOL: TOOL}
# Values of OpenAI's reasoning_effort, from the least.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Parts are a message's texts or calls, or items of OpenAI's responses.
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_PARTS = 16_384
