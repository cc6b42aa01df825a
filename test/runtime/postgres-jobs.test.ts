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
  slow: ["a count that is said late removes the oldest, also while a long history of others is looked through"],
});
await take("schedule", {
  every: 2,
  slow: [
    "makes one job at each tick, which knows for when it was scheduled",
    "ticks once, however many processes there are, and continues with those that are left",
    "that another process makes, changes or removes is heeded within seconds",
    "hands on what the job's definition says, and the input as it was given",
    "saved again at a restart neither loses nor repeats a tick",
    "by several keys is several schedules of one job",
    "because the clock was set back, are none: what has ticked does not tick again",
    "a schedule is paused, over restarts and redeployments, and ticks of the pause are not missed",
    "a schedule is removed, once",
    "a schedule is triggered: one job now, and the ticks stay as they are",
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
