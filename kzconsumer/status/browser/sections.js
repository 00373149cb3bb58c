// The sections of the page, each made of the document of its name.

const MOST_ROWS = 300; // of a table; a choice finds the others
const FIRST_REBALANCES = 12;
const known = {}; // the last document of each name

const MARKS = { OK: "good", WARN: "warn", STOP: "bad", STALL: "bad", REWIND: "bad" };

function showStatus() {
  const it = known.status;
  say(at("group"), it.group);
  say(at("member"), [it.member ?? "not a member yet", `kzconsumer ${it.version}`, it.state].filter(Boolean).join(" · "));
  const [badge, mark] = !it.alive ? ["does not get on", "bad"] : it.ready ? ["ready", "good"] : ["not ready", "warn"];
  connection(badge, mark, it.reason ?? "");
  document.title = `${it.ready && it.alive && !it.stalled ? "" : "(!) "}${it.group} · kzconsumer`;
  const left = (known.partitions?.owned ?? []).map((each) => each.eta);
  const figures = [
    ["Partitions", count(it.owned)],
    ["Members", count(it.members)],
    ["Lag", count(it.lag)],
    ["Behind by", duration(it.lag_seconds)],
    ["Rate", rate(it.rate)],
    ["Done in", left.includes(null) ? UNKNOWN : duration(Math.max(0, ...left))],
    ["Stalled", count(it.stalled), it.stalled ? "bad" : ""],
    ["Burrow says", it.judgement ?? UNKNOWN, MARKS[it.judgement] ?? ""],
    ["Session", it.session, it.session === "held" ? "good" : "warn"],
    ["Generation", count(it.generation)],
  ];
  const list = at("figures");
  for (const [place, [name, value, badgeMark]] of figures.entries()) {
    const box = list.children[place] ?? list.appendChild(make("div"));
    if (!box.children.length) box.append(make("dt", name), make("dd"));
    put(box.lastChild, badgeMark ? { badge: value, mark: badgeMark, text: "" } : value);
  }
}

function connection(badge, mark, reason) {
  const shown = at("readiness");
  say(shown, badge);
  shown.className = `badge ${mark}`;
  say(at("reason"), reason);
}

function state(each) {
  const states = [];
  if (each.paused) states.push("paused");
  if (each.stalled) states.push(`stalled for ${duration(Math.floor(each.standing))}${each.hindrance === "paused" ? "" : `: ${each.hindrance}`}`);
  const text = states.join(", ");
  if (!each.judgement) return text || UNKNOWN;
  return { badge: each.judgement, mark: MARKS[each.judgement], text };
}

function owner(thread) {
  const member = known.status?.member;
  return member && thread.startsWith(`${member}-`) ? `thread ${thread.slice(member.length + 1)}` : thread;
}

function showPartitions() {
  const { owned } = known.partitions;
  const named = at("named").value.trim().toLowerCase();
  const behind = at("behind").checked;
  const chosen = owned
    .map((each) => ({ each, name: `${each.topic}-${each.partition}` }))
    .filter(({ each, name }) => name.toLowerCase().includes(named) && (!behind || each.stalled || each.lag.processed > 0));
  if (at("order").value === "lag") chosen.sort((a, b) => (b.each.lag.processed ?? -1) - (a.each.lag.processed ?? -1));
  const shown = chosen.slice(0, MOST_ROWS);
  say(at("partitions-count"), shown.length === owned.length ? "" : `${count(shown.length)} of ${count(owned.length)} shown`);
  fill(
    at("partitions-table"),
    shown.map(({ each, name }) => ({
      key: name,
      cells: [
        name, state(each), owner(each.owner), each.leader === null ? UNKNOWN : String(each.leader),
        offset(each.offsets.fetched), offset(each.offsets.consumed), offset(each.offsets.processed), offset(each.offsets.committed),
        offset(each.end), count(each.lag.processed), duration(each.lag_seconds.processed), rate(each.rate), duration(each.eta),
      ],
    })),
    owned.length ? "No partition matches." : "No partition is owned.",
  );
  fill(
    at("queues-table"),
    known.partitions.queues.map((each) => ({
      key: `${each.topic}\n${each.thread}`,
      cells: [
        `${each.topic ?? "all topics"}, thread ${each.thread}`, count(each.chunks), bytes(each.bytes), bytes(each.limit),
        `${Math.min(100, Math.round((100 * each.bytes) / each.limit))} %`,
      ],
    })),
    "No stream yet.",
  );
}

function showMembers() {
  const rows = [];
  for (const member of known.members.members) {
    const subscription = `${Object.entries(member.subscription).map(([topic, threads]) => `${topic}, ${plural(threads, "thread")}`).join("; ")}${member.pattern === "static" ? "" : ` (${member.pattern.replace("_", " ")})`}`;
    const client = member.this ? { badge: "this member", mark: "good", text: "" } : member.kzconsumer ? "kzconsumer" : "original";
    const threads = Object.entries(member.threads);
    if (!threads.length) rows.push({ key: member.id, cells: [member.id, client, subscription, "0", "nothing"] });
    for (const [thread, partitions] of threads) {
      rows.push({ key: thread, cells: [thread, client, subscription, count(partitions.length), together(partitions)] });
    }
  }
  fill(at("members-table"), rows, "The group has not been read yet.");
}

const OUTCOMES = { done: "good", blocked: "warn", unreadable: "bad", interrupted: "bad" };
let allRebalances = false;

function showRebalances() {
  const all = [...known.rebalances.rebalances].reverse();
  const list = at("rebalances");
  const items = all.slice(0, allRebalances ? all.length : FIRST_REBALANCES).map((each) => {
    const time = make("time", moment(each.at));
    time.dateTime = new Date(each.at * 1000).toISOString();
    const numbers = ["claimed", "released", "moved", "kept", "blocked"].filter((name) => each[name]).map((name) => `${each[name]} ${name}`);
    const details = make("div");
    const first = details.appendChild(make("p"));
    first.append(make("strong", each.reasons.join(", ")), " ", make("span", each.outcome, `badge ${OUTCOMES[each.outcome] ?? ""}`));
    details.append(make("p", [
      `generation ${each.generation}`, `took ${duration(each.seconds)}`,
      each.members === null ? null : plural(each.members, "member"), numbers.join(", ") || null,
    ].filter(Boolean).join(" · "), "quiet"));
    const item = make("li");
    item.append(time, details);
    return item;
  });
  if (!items.length) items.push(make("li", "None yet."));
  if (items.length < all.length) {
    const item = make("li");
    const button = item.appendChild(make("button", `Show all ${all.length}`));
    button.addEventListener("click", () => { allRebalances = true; showRebalances(); });
    items.push(item);
  }
  list.replaceChildren(...items);
}

function showBatches() {
  const { present, ended, sink } = known.batches;
  describe(at("sink"), sink);
  say(at("batch"), present && present.stage !== "done"
    ? `${plural(present.records, "record")} of ${plural(present.ranges.length, "range")} at the stage “${present.stage}”.`
    : "No batch is being written.");
  const stages = ["collect", "prepare", "wait", "plan", "write", "commit"];
  fill(
    at("batches-table"),
    [...ended].reverse().map((each, place) => ({
      key: `${each.ended} ${place}`,
      cells: [
        clock(each.ended), each.written ? { badge: "written", mark: "good", text: "" } : { badge: "not written", mark: "warn", text: "" },
        count(each.records), each.ranges.slice(0, 3).join(", ") + (each.ranges.length > 3 ? ` and ${each.ranges.length - 3} more` : ""),
        ...stages.map((stage) => (stage in each.seconds ? duration(each.seconds[stage]) : UNKNOWN)),
      ],
    })),
    "None yet.",
  );
}

function showErrors() {
  fill(
    at("errors-table"),
    known.errors.errors.map((each) => ({
      key: `${each.level} ${each.event}`,
      cells: [
        each.event, { badge: each.level, mark: each.level === "warning" ? "warn" : "bad", text: "" }, count(each.count),
        moment(each.first), moment(each.last), each.reason ?? UNKNOWN,
      ],
    })),
    "None since the start.",
  );
}

function showConfig() {
  fill(
    at("config-table"),
    Object.entries(known.config.config)
      .filter(([, value]) => value !== null)
      .map(([key, value]) => ({ key, cells: [key, typeof value === "string" ? value : JSON.stringify(value)] })),
    "",
  );
}
