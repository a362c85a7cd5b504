// The settings of a request.

const MAX_DRAFT_TOKENS = 16;
const MAX_FRESH_SEED = 2 ** 32;

export class Controls {
  constructor(form) {
    this.fields = form.elements;
    this.form = form;
    this.defaultLength = {};
    for (let count = 1; count <= MAX_DRAFT_TOKENS; count++) this.fields.num_speculative_tokens.add(new Option(count, count));
    form.addEventListener("change", () => this.refresh());
    form.addEventListener("input", () => this.#checkJson());
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  // Fills in the server's defaults.
  fill({ target, draft, defaults, drafters }) {
    const { enabled, drafter, num_speculative_tokens, rule } = this.fields;
    drafter.replaceChildren(...Object.entries(drafters).map(([name, help]) => Object.assign(new Option(name, name), { title: help })));
    enabled.checked = defaults.enabled;
    drafter.value = defaults.drafter;
    if (Number(defaults.num_speculative_tokens) === 0) num_speculative_tokens.add(new Option(0, 0));
    num_speculative_tokens.value = defaults.num_speculative_tokens;
    this.defaultLength = defaults;
    rule.value = defaults.rule ?? "";
    for (const name of ["model", "hierarchical"]) drafter.querySelector(`[value=${name}]`).disabled = draft === null;
    this.fields.max_tokens.max = target.max_model_len;
    this.refresh();
  }

  refresh() {
    const { enabled, compare, drafter, num_speculative_tokens, rule } = this.fields;
    const off = !enabled.checked && !compare.checked;
    for (const field of [drafter, num_speculative_tokens, rule]) field.disabled = off;
  }

  // Says at the boxes what is no JSON of their kind.
  #checkJson() {
    const { schema, tools } = this.fields;
    schema.setCustomValidity(complaint(schema.value, (value) => !Array.isArray(value), "a JSON object"));
    tools.setCustomValidity(complaint(tools.value, Array.isArray, "a JSON list"));
  }

  get isChat() {
    return this.fields.mode.value === "chat";
  }

  get compares() {
    return this.fields.compare.checked;
  }

  get enabled() {
    return this.fields.enabled.checked;
  }

  set seed(seed) {
    this.fields.seed.value = seed;
  }

  // Shows values out of range. Returns whether all are valid.
  check() {
    if (this.form.checkValidity()) return true;
    this.form.closest("details").open = true;
    return this.form.reportValidity();
  }

  // A missing seed is chosen here, so that both panes have the same one.
  readSampling() {
    const { temperature, seed, max_tokens } = this.fields;
    return {
      temperature: temperature.valueAsNumber,
      seed: seed.value === "" ? Math.floor(Math.random() * MAX_FRESH_SEED) : seed.valueAsNumber,
      max_tokens: max_tokens.valueAsNumber,
    };
  }

  // The format of the output, and in chats the tools.
  readOutput() {
    const { schema, tools, tool_choice } = this.fields;
    const format = { type: "json_schema", json_schema: { name: "answer", schema: read(schema.value) } };
    return {
      ...(schema.value.trim() && { response_format: format }),
      ...(this.isChat && tools.value.trim() && { tools: read(tools.value) }),
      ...(this.isChat && tools.value.trim() && tool_choice.value && { tool_choice: tool_choice.value }),
    };
  }

  readSpeculation(enabled) {
    if (!enabled) return { enabled: false };
    const { drafter, num_speculative_tokens, rule } = this.fields;
    const length = num_speculative_tokens.value;
    const isRule = Number.isNaN(Number(length));
    // The page has no fields for an adaptive length's bounds: the server's default keeps its own.
    const { draft_min, draft_max, entropy_beta } = this.defaultLength;
    const isServers = isRule && length === this.defaultLength.num_speculative_tokens;
    return {
      enabled: true,
      drafter: drafter.value,
      num_speculative_tokens: isRule ? length : Number(length),
      ...(isServers && { draft_min, draft_max, entropy_beta }),
      ...(rule.value && { rule: rule.value }),
    };
  }
}

// Undefined if the text is no JSON.
function read(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function complaint(text, fits, wanted) {
  if (text.trim() === "") return "";
  const value = read(text);
  return typeof value === "object" && value !== null && fits(value) ? "" : `Not ${wanted}`;
}
