// Signing keys. For a button with data-key, this script sends the form to get a challenge, lets the browser ask the person's
// key, and sends the form again with the signature. It decides nothing; the server verifies everything.
(() => {
  "use strict";
  const decode = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  const encode = (buffer) =>
    btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const decodeIds = (credentials) => (credentials ?? []).map((item) => ({ ...item, id: decode(item.id) }));
  const reasons = {
    InvalidStateError: "You have added this key already.",
    NotAllowedError: "No key answered: the request was cancelled, took too long, or used a key that is not yours. Nothing was sent.",
    SecurityError: "The browser does not allow keys at this address.",
  };

  async function requestSignature(options) {
    const publicKey = { ...options, challenge: decode(options.challenge), allowCredentials: decodeIds(options.allowCredentials) };
    return toJson(await navigator.credentials.get({ publicKey }), ["clientDataJSON", "authenticatorData", "signature"]);
  }

  async function createKey(options) {
    const publicKey = {
      ...options,
      challenge: decode(options.challenge),
      user: { ...options.user, id: decode(options.user.id) },
      excludeCredentials: decodeIds(options.excludeCredentials),
    };
    return toJson(await navigator.credentials.create({ publicKey }), ["clientDataJSON", "attestationObject"]);
  }

  function toJson(credential, names) {
    const response = Object.fromEntries(names.map((name) => [name, encode(credential.response[name])]));
    return JSON.stringify({ id: credential.id, rawId: encode(credential.rawId), type: credential.type, response });
  }

  function setField(form, name, value) {
    const input = form.querySelector(`input[name=${name}]`) ?? form.appendChild(document.createElement("input"));
    Object.assign(input, { type: "hidden", name, value });
  }

  function showMessage(form, message) {
    const element = form.querySelector("[data-key-says]");
    element.textContent = message;
    element.hidden = !message;
  }

  async function requestChallenge(form, button) {
    const body = new URLSearchParams(new FormData(form));
    if (button.name) body.set(button.name, button.value);
    const headers = { Accept: "application/json" };
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body, headers });
    const isJson = (answer.headers.get("content-type") ?? "").startsWith("application/json");
    return isJson ? answer.json() : null;
  }

  async function submitWithKey(form, button) {
    showMessage(form, "");
    const challenge = await requestChallenge(form, button);
    if (challenge?.message) return showMessage(form, challenge.message);
    if (challenge) {
      showMessage(form, "Waiting for your key …");
      if (challenge.get) setField(form, "signature", await requestSignature(challenge.get));
      if (challenge.create) setField(form, "credential", await createKey(challenge.create));
      setField(form, "nonce", challenge.nonce);
    }
    // Without a challenge, the server answers the plain form with a page: show it.
    form.requestSubmit(button);
  }

  for (const button of document.querySelectorAll("button[data-key]")) {
    const form = button.form;
    const canSign = window.isSecureContext && "credentials" in navigator && "PublicKeyCredential" in window;
    if (!canSign) {
      showMessage(form, "This browser cannot use keys at this address.");
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
        await submitWithKey(form, button);
      } catch (error) {
        showMessage(form, reasons[error.name] ?? `The key could not be used: ${error.message}`);
      }
      busy = false;
    });
  }
})();
