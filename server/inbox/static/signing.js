// Keys: a form whose button has data-key is sent once for a challenge, the browser asks the person's key, and the form is
// sent again with what the key said. Nothing is decided here; the server verifies everything.
(() => {
  "use strict";
  const bytes = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  const text = (buffer) =>
    btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const listed = (credentials) => (credentials ?? []).map((found) => ({ ...found, id: bytes(found.id) }));
  const reasons = {
    InvalidStateError: "This key is one of yours already.",
    NotAllowedError: "No key answered: it was cancelled, took too long, or is not one of yours. Nothing was sent.",
    SecurityError: "The browser does not let keys be used at this address.",
  };

  async function signed(options) {
    const publicKey = { ...options, challenge: bytes(options.challenge), allowCredentials: listed(options.allowCredentials) };
    return written(await navigator.credentials.get({ publicKey }), ["clientDataJSON", "authenticatorData", "signature"]);
  }

  async function created(options) {
    const publicKey = {
      ...options,
      challenge: bytes(options.challenge),
      user: { ...options.user, id: bytes(options.user.id) },
      excludeCredentials: listed(options.excludeCredentials),
    };
    return written(await navigator.credentials.create({ publicKey }), ["clientDataJSON", "attestationObject"]);
  }

  function written(credential, names) {
    const response = Object.fromEntries(names.map((name) => [name, text(credential.response[name])]));
    return JSON.stringify({ id: credential.id, rawId: text(credential.rawId), type: credential.type, response });
  }

  function put(form, name, value) {
    const input = form.querySelector(`input[name=${name}]`) ?? form.appendChild(document.createElement("input"));
    Object.assign(input, { type: "hidden", name, value });
  }

  function say(form, words) {
    const place = form.querySelector("[data-key-says]");
    place.textContent = words;
    place.hidden = !words;
  }

  async function challenge(form, button) {
    const body = new URLSearchParams(new FormData(form));
    if (button.name) body.set(button.name, button.value);
    const headers = { Accept: "application/json" };
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body, headers });
    const isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
    return isJson ? answer.json() : null;
  }

  async function press(form, button) {
    say(form, "");
    const asked = await challenge(form, button);
    if (asked?.message) return say(form, asked.message);
    if (asked) {
      say(form, "Your key is asked …");
      if (asked.get) put(form, "signature", await signed(asked.get));
      if (asked.create) put(form, "credential", await created(asked.create));
      put(form, "nonce", asked.nonce);
    }
    // Without a challenge the server had something else to say, in a page: let it.
    form.requestSubmit(button);
  }

  for (const button of document.querySelectorAll("button[data-key]")) {
    const form = button.form;
    const canSign = window.isSecureContext && "credentials" in navigator && "PublicKeyCredential" in window;
    if (!canSign) {
      say(form, "This browser cannot use keys at this address.");
      continue;
    }
    let busy = false;
    button.disabled = false;
    for (const note of form.querySelectorAll("[data-without-script]")) note.hidden = true;
    button.addEventListener("click", async (event) => {
      event.preventDefault();
      if (busy || !form.reportValidity()) return;
      busy = true;
      for (const old of form.querySelectorAll("input[name=signature], input[name=credential], input[name=nonce]")) old.remove();
      try {
        await press(form, button);
      } catch (error) {
        say(form, reasons[error.name] ?? `It did not work: ${error.message}`);
      }
      busy = false;
    });
  }
})();
