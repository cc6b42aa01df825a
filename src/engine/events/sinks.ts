import { createHmac } from "node:crypto";
import { type FileHandle, open } from "node:fs/promises";
import { dirname } from "node:path";
import type { Writable } from "node:stream";
import type { Event } from "../../core/jobs/event.ts";
import type { Clock } from "../../core/text/duration.ts";
import { DEFAULT_FILE_MODE } from "../../core/text/text.ts";

export interface Sink {
  readonly kind: string;
  readonly maxEvents: number;
  /** True: a refused event holds back only later events of the same job or build, and the sink gets one at a time. */
  readonly refusesSingleEvents?: boolean;
  /** Resolves when all events have arrived durably. If it rejects, the relay delivers them again. */
  deliver(events: readonly Event[], signal: AbortSignal): Promise<void>;
}

/** A failed delivery. `isDown`: it says nothing about the event itself, so the relay pauses the sink for at least `after`. */
export class DeliveryFailed extends Error {
  readonly after: number;
  readonly isDown: boolean;

  constructor(message: string, { after = 0, isDown = after > 0 }: { after?: number; isDown?: boolean } = {}) {
    super(message);
    this.name = "DeliveryFailed";
    this.after = after;
    this.isDown = isDown;
  }
}

export function consoleSink(output: Writable = process.stdout): Sink {
  return {
    kind: "console",
    maxEvents: 100,
    deliver: (events) =>
      new Promise((resolve, reject) => {
        // A pipe whose reader is gone also emits "error": unhandled, it would end the process.
        output.on("error", ignore);
        output.write(events.map((event) => `${JSON.stringify(event)}\n`).join(""), (error) => {
          setImmediate(() => output.off("error", ignore));
          if (error) reject(new DeliveryFailed(`Standard output cannot be written: ${error.message}.`));
          else resolve();
        });
      }),
  };
}

function ignore(): void {}

const LINE_START = '{"seq":';
const READ_BYTES = 65_536;

/** Appends to a file, and syncs it before the cursor moves. Each delivery opens the file, so that log rotation may move it. */
export function fileSink(path: string, mode = DEFAULT_FILE_MODE): Sink {
  return {
    kind: "file",
    maxEvents: 500,
    async deliver(events) {
      try {
        await append(path, mode, events.map((event) => `${JSON.stringify(event)}\n`).join(""));
      } catch (error) {
        throw new DeliveryFailed(`The file cannot be written: ${(error as Error).message}.`);
      }
    },
  };
}

async function append(path: string, mode: number, lines: string): Promise<void> {
  const file = await openToAppend(path, mode);
  try {
    const before = await file.stat();
    const size = await cutTornLine(file, before.size);
    try {
      await file.appendFile(lines, "utf8");
      await file.sync();
    } catch (error) {
      // A full disk takes half a line: it must not become the beginning of the next one.
      await file.truncate(size).catch(() => {});
      throw error;
    }
    if (before.size === 0) await syncFolder(dirname(path));
  } finally {
    await file.close();
  }
}

/** Opens the file. An existing file keeps its mode; a new one gets `mode`, whatever the umask is. */
async function openToAppend(path: string, mode: number): Promise<FileHandle> {
  try {
    const created = await open(path, "ax+", mode);
    await created.chmod(mode);
    return created;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    return open(path, "a+");
  }
}

/** Cuts off the torn last line of a killed process, because its event is delivered again. Returns the size that is left. */
async function cutTornLine(file: FileHandle, size: number): Promise<number> {
  const tail = await lastLine(file, size);
  if (tail.length === 0) return size;
  if (isOurs(tail)) {
    await file.truncate(size - tail.length);
    return size - tail.length;
  }
  // Keep text of another program, and end its line.
  await file.appendFile("\n");
  return size + 1;
}

/** Whether the text is a torn line of this sink, or the zeros that a power cut may leave in its place. */
function isOurs(tail: Buffer): boolean {
  const start = tail.subarray(0, LINE_START.length).toString("latin1");
  return LINE_START.startsWith(start) || tail.every((byte) => byte === 0);
}

async function lastLine(file: FileHandle, size: number): Promise<Buffer> {
  let tail = Buffer.alloc(0);
  for (let end = size; end > 0;) {
    // One byte is enough in nearly every case.
    const length = Math.min(end, end === size ? 1 : READ_BYTES);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, end - length);
    const part = buffer.subarray(0, bytesRead);
    const at = part.lastIndexOf(0x0a);
    tail = Buffer.concat([part.subarray(at + 1), tail]);
    if (at !== -1) break;
    end -= length;
  }
  return tail;
}

/** A new file's name is on the disk only when its folder is synced. */
async function syncFolder(path: string): Promise<void> {
  // Windows cannot open folders.
  if (process.platform === "win32") return;
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

const WEBHOOK_TIMEOUT_MS = 15_000;
const MAX_RETRY_AFTER_MS = 86_400_000;

// Sends one POST per event, those of a job or build in order, signed by Standard Webhooks (standardwebhooks.com). The id is the
// event's dedupe key, so the receiver can tell a second delivery from a second event. No error contains the secret, or more of
// the address than the host.
export function webhookSink({ url, secret }: { url: URL; secret: Buffer }, clock: Clock): Sink {
  return {
    kind: "webhook",
    maxEvents: 1,
    refusesSingleEvents: true,
    async deliver(events, signal) {
      for (const event of events) await post(event, signal);
    },
  };

  async function post(event: Event, signal: AbortSignal): Promise<void> {
    const { seq, type, at, job, build, data } = event;
    const body = JSON.stringify({ type, timestamp: new Date(at).toISOString(), data, seq, job, build });
    const timestamp = String(Math.floor(clock.now() / 1_000));
    const signature = createHmac("sha256", secret).update(`${event.dedupeKey}.${timestamp}.${body}`).digest("base64");
    const late = new AbortController();
    const inTime = clock.after(WEBHOOK_TIMEOUT_MS, () => late.abort());
    try {
      const answer = await fetch(url, {
        method: "POST",
        body,
        redirect: "manual",
        signal: AbortSignal.any([signal, late.signal]),
        headers: {
          "content-type": "application/json",
          "user-agent": "holdfast",
          "webhook-id": event.dedupeKey,
          "webhook-timestamp": timestamp,
          "webhook-signature": `v1,${signature}`,
        },
      });
      await answer.body?.cancel();
      if (!answer.ok) {
        const after = retryAfterMs(answer.headers.get("retry-after"), clock.now());
        throw new DeliveryFailed(`${url.origin} answered ${answer.status}.`, { after });
      }
    } catch (error) {
      if (error instanceof DeliveryFailed) throw error;
      if (late.signal.aborted)
        throw new DeliveryFailed(`${url.origin} did not answer within ${WEBHOOK_TIMEOUT_MS / 1_000} s.`, { isDown: true });
      throw new DeliveryFailed(`${url.origin} cannot be reached: ${fetchError(error, url)}.`);
    } finally {
      inTime();
    }
  }
}

function retryAfterMs(header: string | null, now: number): number {
  if (header === null) return 0;
  const wait = /^\d+$/.test(header) ? Number(header) * 1_000 : Date.parse(header) - now;
  return Number.isNaN(wait) ? 0 : Math.min(Math.max(wait, 0), MAX_RETRY_AFTER_MS);
}

/** Returns the reason, which Node puts into the cause. It leaves out texts that quote the address beyond the host. */
function fetchError(error: unknown, { pathname, search }: URL): string {
  const { cause, name } = error as { cause?: { code?: unknown; message?: unknown }; name?: unknown };
  if (typeof cause?.code === "string") return cause.code;
  const words = typeof cause?.message === "string" ? cause.message : "";
  const isQuoted = [pathname, search].some((part) => part.length > 1 && words.includes(part));
  return words === "" || isQuoted ? String(name ?? "unknown") : words;
}
