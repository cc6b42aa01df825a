import "./on-postgres.ts";

for (const suite of [
  "stages",
  "values",
  "expand",
  "gather",
  "failing",
  "resume-failed",
  "budget",
  "orchestrator",
  "left-undone",
  "bytes",
  "listing",
  "outputs",
  "plan",
  "removals",
]) {
  await import(`./${suite}.test.ts`);
}
