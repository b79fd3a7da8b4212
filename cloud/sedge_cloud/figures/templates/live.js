// Swaps the page's content in place when the fleet changes. Without this script the page works, but stays as loaded.
"use strict";
const mark = () => document.getElementById("live");
const silentMs = 3000 * mark().dataset.beat; // data-beat: the stream's interval in seconds
let last = new Date(); // when the coordinator last answered
const bar = document.createElement("div");
bar.id = "lost";
bar.setAttribute("role", "alert");
// Outside the swapped content, so that screen readers announce changes only.
const said = document.createElement("div");
said.className = "sr";
said.setAttribute("role", "status");
document.body.append(said);
const health = () => document.getElementById("health")?.textContent ?? "";
let heard = health();
function answered() {
  last = new Date();
  mark().textContent = "live";
  document.body.classList.remove("lost");
  bar.remove();
}
function lost() {
  mark().textContent = "";
  bar.textContent = `No answer from the coordinator since ${last.toLocaleString()}. Everything below is as it was then.`;
  document.body.classList.add("lost");
  document.body.prepend(bar);
}
// A selector of the focused element, and its index among the matches: both survive a swap.
function focused() {
  const one = document.activeElement;
  if (!one || !one.closest("main")) return null;
  const id = one.id || one.closest("details")?.id;
  const named = ["href", "name"].find((key) => one.hasAttribute(key));
  const own = named ? `${one.localName}[${named}="${CSS.escape(one.getAttribute(named))}"]` : one.localName;
  const selector = one.id ? `#${CSS.escape(id)}` : id && !named ? `#${CSS.escape(id)} ${own}` : `main ${own}`;
  return { selector, place: [...document.querySelectorAll(selector)].indexOf(one) };
}
// Text that was typed but not sent yet, and its field.
function typed() {
  const fields = [...document.querySelectorAll("main input[name]:not([type=hidden])")];
  return fields.map((one) => [one.name, one.value, one.defaultValue, one.selectionStart, one.selectionEnd]);
}
function restore(focus, fields) {
  for (const [name, value, given, start, end] of fields) {
    const one = document.querySelector(`main input[name="${name}"]`);
    if (!one) continue;
    if (value !== given) one.value = value;
    one.setSelectionRange(start, end);
  }
  if (focus) document.querySelectorAll(focus.selector)[focus.place]?.focus({ preventScroll: true });
}
async function swap() {
  const answer = await fetch(location.href, { signal: AbortSignal.timeout(silentMs) });
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const opened = new Set([...document.querySelectorAll("details[open]")].map((one) => one.id));
  const scrolled = [...document.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const focus = focused(), fields = typed();
  for (const one of fresh.querySelectorAll("details")) if (opened.has(one.id)) one.open = true;
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  document.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] ?? 0; });
  restore(focus, fields);
  if (health() !== heard) said.textContent = heard = health();
  answered();
}
const update = () => swap().catch(lost);
const events = new EventSource("events");
events.addEventListener("change", update);
// After a silence the page may have missed changes.
events.addEventListener("beat", () => { document.body.classList.contains("lost") ? update() : answered(); });
events.onopen = update;
events.onerror = lost;
// A hanging process, or a network that drops everything, closes no connection.
setInterval(() => { if (new Date() - last > silentMs) lost(); }, 1000);
setInterval(update, 60000); // ages grow even when nothing happens
