// Calls the gateway's HTTP API: requests, server-sent events, error messages.

const KEY_NAME = "paceline-key";

// An error with a message for the user. `status`: 0 if there was no response.
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY_NAME, key);
}

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY_NAME);
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The gateway does not answer. Is it running, and is the network up?");
  }
  if (!response.ok) throw new ApiError(await describe(response, key), response.status);
  return response;
}

async function describe(response, key) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `HTTP status ${response.status}`;
  const after_s = response.headers.get("Retry-After");
  if (response.status === 401) return key ? "The gateway refused the key." : "This gateway asks for a key.";
  if (response.status === 429 || (response.status === 503 && after_s)) {
    // Retry-After may also be a date.
    const when = /^\d+$/.test(after_s ?? "") ? `in ${after_s} s` : after_s ? `after ${after_s}` : "later";
    return `The server is busy: try again ${when}. (${message})`;
  }
  return message;
}

export async function getJson(path) {
  return (await request(path)).json();
}

// Yields the data of each server-sent event.
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    // Closes the connection if the reader stops early. A broken one cannot be closed.
    reader.cancel().catch(() => {});
  }
}

// Yields the chunks of a completion. Throws ApiError, or AbortError after the signal.
export async function* stream(path, body, signal) {
  const response = await request(path, { method: "POST", body: JSON.stringify(body), signal });
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw new ApiError("The connection broke before the answer was complete.");
  }
  throw new ApiError("The stream ended before the answer was complete.");
}
