// Closes Holdfast's own connection inside a callback, past the method that Holdfast replaces: node closes-connection.ts PATH DRIVER
import { job, open, type OpenOptions } from "../../../src/index.ts";

const [path, driver] = process.argv.slice(2) as [string, NonNullable<OpenOptions["driver"]>];
const hf = await open(path, { driver, log: false });
const write = job({ name: "write", run: () => {} });
const answers: string[] = [];
const answer = async (call: () => Promise<unknown>) =>
  void answers.push(await call().then(String, ({ code }: { code: string }) => code));

await hf.enqueue(write, {});
const claim = await hf.claim(write, { worker: "me" });
const close = (db: object) => (Object.getPrototypeOf(db) as { close(): void }).close.call(db);
await answer(async () => claim?.succeed(1, { commit: ({ db }) => close(db) }));
await answer(() => hf.enqueue(write, {}));
await answer(() => hf.transaction(() => {}));
await answer(() => hf.jobs.counts());
await hf.close();
answers.push("closed");
console.log(JSON.stringify(answers));
