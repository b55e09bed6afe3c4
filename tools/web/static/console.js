// The console: who is logged in, which page is shown, and when it is read again.
//
// A page is a function of (place, ctx): it puts its elements into `place` once and returns a function that reads what
// changes and shows it. That is called at once and every few seconds (`ctx.every` says how often), unless a dialog is
// open or the page is hidden.

import { Refused, ask, field, h, values } from "/kit.js";
import { PAGES } from "/pages.js";
import { STORED_PAGES } from "/stored.js";

const REFRESH_MILLISECONDS = 5000;
const TICK_MILLISECONDS = 500;
const MANAGEMENT = ["management", "policymaker", "monitoring", "administrator"]; // the tags that have a role
const MONITORING = ["monitoring", "administrator"];
const ADMINISTRATOR = ["administrator"];
const NAVIGATION = [
  ["", "Overview", MANAGEMENT], ["queues", "Queues", MANAGEMENT], ["exchanges", "Exchanges", MANAGEMENT],
  ["connections", "Connections", MANAGEMENT], ["channels", "Channels", MANAGEMENT], ["federation", "Federation", MONITORING],
  ["store", "Store", MONITORING], ["transactions", "Transactions", MONITORING], ["access", "Access", MANAGEMENT],
  ["alarms", "Alarms", MONITORING], ["log", "Log", ADMINISTRATOR],
];
const STORED_NAVIGATION = [["", "Store"], ["damage", "Damage"], ["recovery", "Recovery"]];
const main = document.getElementById("main");
const state = document.getElementById("state");
let current = null; // the page that is shown: {refresh, isBusy}
let [pages, navigation] = [PAGES, NAVIGATION];

// ---- light and dark ----

const theme = document.getElementById("theme");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function showTheme(wanted) {
  if (wanted) document.documentElement.dataset.theme = wanted;
  const isDark = wanted ? wanted === "dark" : systemIsDark.matches;
  theme.textContent = isDark ? "☀" : "☾";
  theme.title = isDark ? "Light" : "Dark";
}

theme.addEventListener("click", () => {
  const wanted = theme.title === "Light" ? "light" : "dark";
  localStorage.setItem("theme", wanted);
  showTheme(wanted);
});
systemIsDark.addEventListener("change", () => showTheme(localStorage.getItem("theme")));
showTheme(localStorage.getItem("theme"));

// ---- login ----

function showLogin() {
  current = null;
  document.getElementById("top").hidden = true;
  document.title = "Log in – qstore";
  const problem = h("p", { class: "error", role: "alert", hidden: true });
  const button = h("button", { type: "submit", class: "main" }, "Log in");
  const form = h("form", { class: "card login" },
    h("h1", {}, "qstore"),
    h("p", { class: "sub" }, "Name and password of a user of the broker. A broker without users admits any name."),
    field("User", h("input", { name: "user", autocomplete: "username", required: true, autofocus: true })),
    field("Password", h("input", { name: "password", type: "password", autocomplete: "current-password" })),
    problem, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await ask("qstore/login", { method: "POST", body: values(form) });
      await start();
    } catch (error) {
      problem.textContent = error.status === 401 ? "The broker does not know this user with this password." : error.message;
      problem.hidden = false;
    } finally {
      button.disabled = false;
    }
  });
  main.replaceChildren(form);
  form.elements.user.focus();
}

document.getElementById("leave").addEventListener("click", async () => {
  await ask("qstore/login", { method: "DELETE" }).catch(() => null);
  showLogin();
});

// ---- pages ----

function showNavigation(name) {
  const belongs = { queue: "queues", exchange: "exchanges", connection: "connections", journal: "" }[name] ?? name;
  document.getElementById("nav").replaceChildren(...navigation.map(([path, label]) =>
    h("a", { href: `#/${path}`, "aria-current": path === belongs ? "page" : null }, label)));
  const bar = document.getElementById("nav");
  const shown = bar.querySelector("[aria-current]");
  if (shown) bar.scrollLeft = shown.offsetLeft - bar.offsetLeft - 40; // in a narrow window the bar is scrolled
}

async function refresh(page) {
  if (page.isBusy) return;
  page.isBusy = true;
  page.shown = performance.now();
  try {
    await page.refresh();
    if (page === current) {
      page.problem.hidden = true;
      state.textContent = "";
      state.className = "";
    }
  } catch (error) {
    if (page !== current) return;
    page.problem.textContent = error instanceof Refused ? error.message : `The page has failed: ${error.message}`;
    page.problem.hidden = false;
    if (error.status === 503 || error.status === 0) {
      state.textContent = "Not connected";
      state.className = "bad";
    }
    if (!(error instanceof Refused)) throw error;
  } finally {
    page.isBusy = false;
  }
  if (page.isWanted && page === current) {
    page.isWanted = false;
    await refresh(page);
  }
}

async function showPage() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const build = pages[name];
  showNavigation(name);
  const place = h("div");
  const page = { problem: h("p", { class: "note bad", role: "alert", hidden: true }), isBusy: false, every: REFRESH_MILLISECONDS, shown: 0, refresh: async () => null };
  current = page;
  main.dataset.path = path;
  main.setAttribute("aria-busy", "true");
  main.replaceChildren(page.problem, place);
  if (!build) {
    main.setAttribute("aria-busy", "false");
    document.title = "qstore";
    place.append(h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "#/" }, "Overview")));
    return;
  }
  const ctx = {
    title: (text) => { document.title = `${text} – qstore`; },
    again: () => {
      page.isWanted = page.isBusy; // what is under way may not have seen what was done
      return refresh(page);
    },
    every: (milliseconds) => { page.every = milliseconds; },
    query: new URLSearchParams(query),
  };
  page.refresh = build(place, ctx, ...rest.map(decodeURIComponent));
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
  try {
    await refresh(page);
  } finally {
    if (page === current) main.setAttribute("aria-busy", "false");
  }
}

async function start() {
  const [, token] = location.hash.match(/^#\/enter\/(.+)$/) ?? [];
  if (token) {
    window.history.replaceState(null, "", "#/"); // the token stays out of the history of the browser
    await ask("qstore/login", { method: "POST", body: { user: "operator", password: token } });
  }
  const user = await ask("whoami");
  const seen = NAVIGATION.filter(([, , tags]) => tags.some((each) => user.tags?.includes(each)));
  [pages, navigation] = user.store ? [STORED_PAGES, STORED_NAVIGATION] : [PAGES, seen];
  document.getElementById("user").textContent = user.name;
  document.getElementById("top").hidden = false;
  if (!navigation.length) {
    showNavigation("");
    main.replaceChildren(h("p", { class: "note" }, `The user ${user.name} sees nothing here: it has none of the tags ${MANAGEMENT.join(", ")}.`));
    return;
  }
  await showPage();
}

ask.onUnauthorized = showLogin;
addEventListener("hashchange", () => current && showPage());
setInterval(() => {
  const isDue = current && performance.now() - current.shown >= current.every - TICK_MILLISECONDS / 2;
  if (isDue && !document.hidden && !document.querySelector("dialog[open]")) refresh(current);
}, TICK_MILLISECONDS);
start().catch((error) => {
  if (error.status !== 401) main.replaceChildren(h("p", { class: "note bad", role: "alert" }, error.message));
});
