// Swaps the page's content in place when the fleet changes. Without it the page is the same, once loaded.
"use strict";
const mark = () => document.getElementById("live");
async function swap() {
  const opened = new Set([...document.querySelectorAll("details[open]")].map((one) => one.id));
  const scrolled = [...document.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const answer = await fetch(location.href);
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const one of fresh.querySelectorAll("details")) if (opened.has(one.id)) one.open = true;
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  document.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] ?? 0; });
  mark().textContent = "live";
}
const lost = () => { mark().textContent = "no answer"; };
const events = new EventSource("events");
events.addEventListener("change", () => swap().catch(lost));
events.onopen = () => swap().catch(lost);
events.onerror = lost;
setInterval(() => swap().catch(lost), 60000); // ages grow even when nothing happens
