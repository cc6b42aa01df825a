import { createHmac } from "node:crypto";
import type { Clock } from "../../core/text/duration.ts";
import type { Event } from "../../core/jobs/event.ts";
import { type Sink, SinkDown } from "./sink.ts";

/** Whoever has not answered by then is down. */
const TIMEOUT = 15_000;
/** Nobody is left alone for longer, whatever it says. */
const LONGEST_WAIT = 86_400_000;

/**
 * One POST an event, those of a job or build in order, signed as Standard Webhooks (standardwebhooks.com) say. The id is the event's dedupe key,
 * so the other side can tell a second delivery from a second event. Neither the secret nor what the address holds
 * beyond the host is ever in an error.
 */
export function webhookSink({ url, secret }: { url: URL; secret: Buffer }, clock: Clock): Sink {
  return {
    kind: "webhook",
    atOnce: 1,
    refusesOne: true,
    async deliver(events, signal) {
      for (const event of events) await post(event, signal);
    },
  };

  async function post(event: Event, signal: AbortSignal): Promise<void> {
    const body = bodyOf(event);
    const timestamp = String(Math.floor(clock.now() / 1_000));
    const late = new AbortController();
    const inTime = clock.after(TIMEOUT, () => late.abort());
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
          "webhook-signature": `v1,${sign(secret, `${event.dedupeKey}.${timestamp}.${body}`)}`,
        },
      });
      await answer.body?.cancel();
      if (!answer.ok) {
        const after = waitAsked(answer.headers.get("retry-after"), clock.now());
        throw new SinkDown(`${url.origin} answered ${answer.status}.`, { after });
      }
    } catch (error) {
      if (error instanceof SinkDown) throw error;
      if (late.signal.aborted) throw new SinkDown(`${url.origin} did not answer within ${TIMEOUT / 1_000} s.`, { isDown: true });
      throw new SinkDown(`${url.origin} cannot be reached: ${reasonOf(error, url)}.`);
    } finally {
      inTime();
    }
  }
}

function bodyOf({ seq, type, at, job, build, data }: Event): string {
  return JSON.stringify({ type, timestamp: new Date(at).toISOString(), data, seq, job, build });
}

function sign(secret: Buffer, content: string): string {
  return createHmac("sha256", secret).update(content).digest("base64");
}

/** `Retry-After`: seconds, or a date. */
function waitAsked(header: string | null, now: number): number {
  if (header === null) return 0;
  const wait = /^\d+$/.test(header) ? Number(header) * 1_000 : Date.parse(header) - now;
  return Number.isNaN(wait) ? 0 : Math.min(Math.max(wait, 0), LONGEST_WAIT);
}

/**
 * `fetch` says "fetch failed", and why in its cause: a code (ECONNREFUSED), or a few words of its own ("bad port"). Words
 * that quote what the address holds beyond the host are left out.
 */
function reasonOf(error: unknown, { pathname, search }: URL): string {
  const { cause, name } = error as { cause?: { code?: unknown; message?: unknown }; name?: unknown };
  if (typeof cause?.code === "string") return cause.code;
  const words = typeof cause?.message === "string" ? cause.message : "";
  const isQuoted = [pathname, search].some((part) => part.length > 1 && words.includes(part));
  return words === "" || isQuoted ? String(name ?? "unknown") : words;
}
