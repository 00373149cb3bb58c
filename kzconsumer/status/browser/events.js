// Reads the API's events while the member is reachable, and shows their content.

const RETRY = 2000; // milliseconds until the next attempt to reach the member
const SILENCE = 10000; // without even a comment: the member is gone
let token = sessionStorage.getItem("token");
let lostSince = null;

const SHOW = {
  status: () => {}, // after each batch of events, since it has the partitions too
  members: showMembers, group: showGroup, partitions: showPartitions, history: showHistory,
  rebalances: showRebalances, batches: showBatches, errors: showErrors, config: showConfig,
};

function take(event) {
  let name = "";
  let data = "";
  for (const line of event.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data = line.slice(6);
  }
  if (!Object.hasOwn(SHOW, name)) return;
  known[name] = parsed(data);
  SHOW[name]();
}

function reached() {
  lostSince = null;
  at("asking").hidden = true;
  at("shown").hidden = false;
  at("shown").classList.remove("old");
}

function lost() {
  lostSince ??= Date.now() / 1000;
  at("shown").classList.add("old");
  connection("not reachable", "bad", `since ${moment(lostSince)}, the data shown is older`);
  document.title = `(!) not reachable · ${known.status ? `${known.status.group} · ` : ""}kzconsumer`;
}

/** Until the stream ends; false if it was refused without the token. */
async function listen() {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENCE);
  try {
    const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
    const answer = await fetch("api/v1/events?group", { headers, cache: "no-store", signal: silence.signal });
    if (answer.status === 401) return false;
    if (!answer.ok) throw new Error(String(answer.status));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return true;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE);
      const events = (text + value).split("\n\n");
      text = events.pop();
      if (events.length) reached();
      events.forEach(take);
      if (known.status) showStatus();
    }
  } finally {
    clearTimeout(timer);
  }
}

function asked() {
  connection("needs the token", "warn", "");
  say(at("refused"), token === null ? "" : "Wrong token.");
  at("shown").hidden = true;
  at("asking").hidden = false;
  at("token").focus();
  return new Promise((resolve) => {
    at("asking").addEventListener("submit", (event) => {
      event.preventDefault();
      token = at("token").value.trim();
      sessionStorage.setItem("token", token);
      resolve();
    }, { once: true });
  });
}

async function run() {
  for (;;) {
    let allowed = true;
    try {
      allowed = await listen();
    } catch (error) {
      console.debug(error);
    }
    if (allowed) {
      lost();
      await new Promise((resolve) => { setTimeout(resolve, RETRY); });
    } else {
      await asked();
    }
  }
}

for (const id of ["named", "order", "fine"]) at(id).addEventListener("input", () => { if (known.partitions) showPartitions(); });
run();
