// Asking the gateway: everything that the console shows and does goes through /v2, as for any other client.

export const session = { principal: "", administrator: false, changes: false, tokens: false, csrf: null };

// Whether one sees the whole cluster: an administrator, and everybody at a gateway without tokens.
export const operator = () => session.administrator || !session.tokens;

export class Problem extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function ask(method, path, { body, headers, raw = false, signal } = {}) {
  const sent = { ...headers };
  if (body !== undefined && !(body instanceof Blob)) { body = JSON.stringify(body); sent["Content-Type"] = "application/json"; }
  if (method !== "GET") {
    sent["Idempotency-Key"] = crypto.getRandomValues(new Uint32Array(4)).join("-");
    if (session.csrf) sent["Buckram-CSRF"] = session.csrf;
  }
  let answer;
  try {
    answer = await fetch(path, { method, body, headers: sent, credentials: "same-origin", signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "GATEWAY_AWAY", "The gateway does not answer. The page shows what was known before.");
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Problem(answer.status, said.code ?? "UNKNOWN", said.message ?? `The gateway answered ${answer.status}.`);
  }
  return raw ? answer : answer.json();
}

export const get = (path, more) => ask("GET", path, more);

export const url = (...parts) => "/v2/" + parts.map(encodeURIComponent).join("/");

export async function loadSession() {
  Object.assign(session, await get("/v2/session"));
}
