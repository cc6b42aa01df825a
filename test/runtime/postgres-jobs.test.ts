import { take } from "./on-postgres.ts";

/** The same tests as on files and in memory: jobs, from their enqueueing to their removal. */
await take("enqueue", { every: 5 });
await take("text");
await take("jobs", { every: 3 });
await take("claim", { every: 3 });
await take("context", { every: 4 });
await take("after", { every: 2 });
await take("drain", { every: 3 });
await take("retention", {
  every: 1,
  slow: ["a `keep` count that is declared late removes the oldest jobs, also among a long history of others"],
});
await take("schedule", {
  every: 2,
  slow: [
    "a schedule creates one job at each tick, which knows its scheduled time",
    "a schedule ticks once over all processes, and continues while one is left",
    "a worker applies schedules that another process creates, changes or removes within seconds",
    "a scheduled job has the options of its definition, and its input as given",
    "a schedule saved again at a restart neither loses nor repeats a tick",
    "several keys make several schedules of one job",
    "a clock set back repeats no tick",
    "a paused schedule stays paused over restarts, and ticks during the pause are not missed ticks",
    "a schedule is removed once",
    "a triggered schedule creates one job now, and its ticks stay the same",
  ],
});
await take("events", {
  every: 3,
  slow: [
    "a slow durable subscriber keeps its right to deliver",
    "a subscriber with a name that unsubscribes is awaited, and not called again",
    "a subscriber that throws gets the same event again after growing delays, and delays only itself",
    "a durable subscriber that hangs does not block close, and gets its event again",
    "a durable subscriber that slept past its hold moves no position and waits for its turn",
  ],
});
await take("all-matching", { every: 3 });
await take("minutes");
