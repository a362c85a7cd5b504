"""The roles of a chat's messages, and the most that it may have of everything."""

# By what chat templates call them.
SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES = {SYSTEM: SYSTEM, "developer": SYSTEM, USER: USER, ASSISTANT: ASSISTANT, TOOL: TOOL}
# Parts are a message's texts or calls, or items of OpenAI's responses.
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_PARTS = 16_384
