// Swaps the page's content in place when the fleet changes. Without it the page is the same, once loaded.
"use strict";
const mark = () => document.getElementById("live");
const silentMs = 3000 * mark().dataset.beat; // the stream beats so often, in seconds
let last = new Date(); // when the coordinator last answered
const bar = document.createElement("div");
bar.id = "lost";
bar.setAttribute("role", "alert");
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
async function swap() {
  const opened = new Set([...document.querySelectorAll("details[open]")].map((one) => one.id));
  const scrolled = [...document.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const answer = await fetch(location.href, { signal: AbortSignal.timeout(silentMs) });
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const one of fresh.querySelectorAll("details")) if (opened.has(one.id)) one.open = true;
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  document.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] ?? 0; });
  answered();
}
const update = () => swap().catch(lost);
const events = new EventSource("events");
events.addEventListener("change", update);
// After a silence the page may have missed changes.
events.addEventListener("beat", () => { document.body.classList.contains("lost") ? update() : answered(); });
events.onopen = update;
events.onerror = lost;
// A process that hangs, or a network that drops everything, ends no connection.
setInterval(() => { if (new Date() - last > silentMs) lost(); }, 1000);
setInterval(update, 60000); // ages grow even when nothing happens
