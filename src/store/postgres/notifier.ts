import type { Fence, JobKey } from "../../core/text/ids.ts";
import type { Value } from "./connection/driver.ts";
import { channelOf, isUntold, noticeText, WAIT_FOR_TELLERS, waitForTellers } from "./notification.ts";

/** Between two notices at least, in milliseconds: of what can be claimed, and of anything else. */
const PACE = 2;
const EASY_PACE = 5;
/** A notice goes into a commit only so long after the last one, and not for this long after such a commit was slow, in milliseconds. */
const RARELY = 5;
const SLOW = 10;
const NOT_AGAIN = 1_000;
/** Whether anybody listens is looked up this often: while nobody does, and while somebody does. */
const ALONE = 100;
const IN_COMPANY = 1_000;
/** So long after a notice that look is taken, when whoever was told has what it came for, in milliseconds. */
const ASIDE = 10;
/** So long nobody is told anything once that could not be done, but for a try aside, in milliseconds. */
const HUSH = 1_000;
/** What is untold at the end is waited for no longer than this, in milliseconds. */
const LAST = 1_000;

interface Said {
  ready: ReadonlySet<string>;
  ended: readonly { job: JobKey; fence: Fence }[];
}

/**
 * Tells others what was committed, after the commit: within it, a notice would make every commit of the database wait for
 * the one before. One is on its way at a time, and what happens meanwhile goes into the next; nobody waits for it.
 */
export class Crier {
  readonly #send: (text: string, ...values: Value[]) => Promise<readonly unknown[]>;
  readonly #channel: string;
  /** This handle's own name, and what the connections of all who listen are called in the server's list. */
  readonly #from: string;
  readonly #ear: string;
  #ready = new Set<string>();
  #ended: [JobKey, Fence][] = [];
  #untold = false;
  #timer: NodeJS.Timeout | null = null;
  #busy = false;
  #telling: Promise<void> = Promise.resolve();
  #saidAt = Number.NEGATIVE_INFINITY;
  #slowAt = Number.NEGATIVE_INFINITY;
  /** What was sent behind a commit, and is on its way. */
  #behind: Said | null = null;
  /** Since when it is known that nobody can be told; null: it is not so. */
  #hushedAt: number | null = null;
  #company = false;
  #lookedAt = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(schema: string, from: string, send: (text: string, ...values: Value[]) => Promise<readonly unknown[]>) {
    this.#channel = channelOf(schema);
    this.#from = from;
    this.#ear = earOf(schema, "");
    this.#send = send;
  }

  /** The statement that tells others, for whoever sends it right behind a commit; null: not now, and `say` has to be called. */
  behind(ready: ReadonlySet<string>, ended: readonly { job: JobKey; fence: Fence }[]): [text: string, ...values: Value[]] | null {
    const notice = this.#atOnce(ready, ended, PACE);
    if (notice === null) return null;
    this.#behind = { ready, ended };
    return [TELL, ...notice];
  }

  /**
   * What a statement that is a transaction by itself tells as it is committed; null: not now. Whoever waits for a job hears
   * of it a statement sooner. Commits that tell wait for each other, so it is done where there are few.
   */
  along(ready: ReadonlySet<string>): [channel: string, text: string] | null {
    return performance.now() < this.#slowAt + NOT_AGAIN ? null : this.#atOnce(ready, [], RARELY);
  }

  /** How long such a statement took: others may do the same. */
  took(millis: number): void {
    if (millis >= SLOW) this.#slowAt = performance.now();
  }

  wentBehind(): void {
    this.#behind = null;
  }

  /**
   * A notice has come to nothing: somebody else is at the commit of his for long, or there is no room. Whoever commits
   * something next is not to wait for that again, nor is what is sent after a notice. What was untold is tried again aside:
   * whoever waits for it hears of it soon after the other is gone.
   */
  hush(): void {
    const untold = this.#behind;
    this.#behind = null;
    this.#hushedAt = performance.now();
    if (untold !== null) this.say(untold.ready, untold.ended);
  }

  #atOnce(
    ready: ReadonlySet<string>,
    ended: readonly { job: JobKey; fence: Fence }[],
    pace: number,
  ): [channel: string, text: string] | null {
    const now = performance.now();
    if (ready.size + ended.length === 0 || !this.#company || this.#busy || this.#untold || this.#closed) return null;
    if (this.#behind !== null || this.#hushedAt !== null) return null;
    if (now < this.#saidAt + pace) return null;
    this.#saidAt = now;
    // Nobody waits for that: whoever was there a second ago is told now.
    if (now - this.#lookedAt >= IN_COMPANY) this.#lookSoon(now);
    const pairs = ended.map(({ job, fence }): [JobKey, Fence] => [job, fence]);
    return [this.#channel, noticeText({ from: this.#from, ready: [...ready], ended: pairs })];
  }

  say(ready: Iterable<string>, ended: Iterable<{ job: JobKey; fence: Fence }>): void {
    for (const queue of ready) this.#ready.add(queue);
    for (const { job, fence } of ended) this.#ended.push([job, fence]);
    this.#untold = true;
    this.#arrange();
  }

  /** The statement for whoever tells within a transaction of his own, where there is no after. */
  within(ready: Iterable<string>): [text: string, ...values: Value[]] {
    return ["select pg_notify($1, $2)", this.#channel, noticeText({ from: "", ready: [...ready], ended: [] })];
  }

  /** What is untold goes first: whoever waits for it would find it by looking, seconds later. */
  async close(): Promise<void> {
    // What was committed just now is said when its caller has gone on.
    await new Promise<void>((resolve) => process.nextTick(resolve));
    this.#closed = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, LAST);
    await Promise.race([this.#tellRest(), late]);
    clearTimeout(timer);
  }

  async #tellRest(): Promise<void> {
    await this.#telling;
    if (this.#ready.size + this.#ended.length > 0) await this.#tell(performance.now());
  }

  #lookSoon(now: number): void {
    this.#lookedAt = now;
    setTimeout(() => void this.#look(), ASIDE).unref();
  }

  async #look(): Promise<void> {
    if (this.#closed) return;
    try {
      const heard = await this.#send(`select 1 where ${SOMEBODY("$1", "$2")}`, this.#ear, this.#from);
      this.#company = heard.length > 0;
    } catch {
      // Then as before.
    }
  }

  #arrange(): void {
    if (this.#busy || this.#closed || !this.#untold) return;
    const now = performance.now();
    const isUrgent = this.#ready.size + this.#ended.length > 0;
    const pace = !this.#company ? ALONE : isUrgent ? PACE : EASY_PACE;
    const from = this.#hushedAt === null ? this.#saidAt + pace : this.#hushedAt + HUSH;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (now >= from) this.#telling = this.#tell(now);
    else this.#timer = setTimeout(() => this.#arrange(), from - now).unref();
  }

  async #tell(now: number): Promise<void> {
    const ready = this.#ready;
    const text = noticeText({ from: this.#from, ready: [...ready], ended: this.#ended });
    this.#ready = new Set();
    this.#ended = [];
    this.#untold = false;
    this.#busy = true;
    this.#saidAt = now;
    try {
      if (this.#company && this.#hushedAt === null && now - this.#lookedAt < IN_COMPANY) {
        await this.#send(TELL, this.#channel, text);
      } else {
        const tell = this.#hushedAt === null ? TELL_SOMEBODY : TRY_SOMEBODY;
        const heard = await this.#send(tell, this.#channel, text, this.#ear, this.#from);
        this.#company = heard.length > 0;
        this.#lookedAt = now;
        this.#hushedAt = null;
      }
    } catch (error) {
      // It is a hint: whoever missed it looks by himself before long.
      if (isUntold(error)) {
        this.hush();
        // Whose leases have ended is found out by their holders; what can be claimed would wait.
        this.say(ready, []);
      }
    }
    this.#busy = false;
    this.#arrange();
  }
}

/** What the connection of a handle that listens is called. */
export function earOf(schema: string, handle: string): string {
  return `holdfast hears ${schema} ${handle}`;
}

/** A hint need not be on the disk, and the server would wait for that before it delivers. */
const tellSql = (wait: string): string => `select pg_notify($1, $2), set_config('synchronous_commit', 'off', true), ${wait}`;
const TELL = tellSql(WAIT_FOR_TELLERS);

/** Whether somebody else listens. Names of connections can be seen by everybody. */
const SOMEBODY = (ear: string, from: string): string => `exists (
    select 1 from pg_stat_activity
    where datname = current_database() and starts_with(application_name, ${ear}) and application_name <> ${ear} || ${from})`;

/** Only then; else there is no row. */
const TELL_SOMEBODY = `${TELL} where ${SOMEBODY("$3", "$4")}`;

/** While it is known that it would be in vain. */
const TRY_SOMEBODY = `${tellSql(waitForTellers("100ms"))} where ${SOMEBODY("$3", "$4")}`;
