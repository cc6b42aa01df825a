import type { Event } from "../core/jobs/event.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { Operator } from "../operator/operator.ts";

const MAX_STREAMS = 1_000;
const KEEP_ALIVE_MS = 15_000;
const MIN_CHANGE_INTERVAL_MS = 500;
/** A client that reads more slowly than events arrive is disconnected; it continues after `Last-Event-ID`. */
const MAX_BUFFERED_EVENTS = 1_000;

let open = 0;
const NOTHING = () => {};

/** Answers HEAD without a stream, because a stream that no client reads would stay open. */
export function streamHead(): Response {
  return new Response(null, { headers: HEADERS });
}

/** Streams stored events. A client that reconnects continues where it was. */
export async function eventStream(
  operator: Operator,
  { types, after, shown }: { types?: string[]; after?: number; shown: (event: Event) => Event },
  signal: AbortSignal,
): Promise<Response> {
  const from = after ?? (await operator.newestEvent());
  return stream(signal, (send) => {
    const on = (event: Event) => send(`id: ${event.seq}\nevent: ${event.type}\ndata: ${JSON.stringify(shown(event))}\n\n`);
    const subscription = operator.followEvents(on, types === undefined ? {} : { types }, from);
    return () => void subscription.end();
  });
}

/** Streams that something was committed, without saying what: the page reads again what it shows. */
export function changeStream(operator: Operator, signal: AbortSignal): Response {
  return stream(signal, (send) => {
    let timer: NodeJS.Timeout | null = null;
    let lastAt = 0;
    const onCommit = () => {
      timer ??= setTimeout(
        () => {
          timer = null;
          lastAt = performance.now();
          send("event: change\ndata: {}\n\n");
        },
        Math.max(0, lastAt + MIN_CHANGE_INTERVAL_MS - performance.now()),
      );
    };
    const unlisten = operator.onCommit(onCommit, { pauseMs: MIN_CHANGE_INTERVAL_MS });
    return () => {
      unlisten();
      if (timer !== null) clearTimeout(timer);
    };
  });
}

const HEADERS = { "content-type": "text/event-stream", "cache-control": "no-store" };

function stream(signal: AbortSignal, start: (send: (text: string) => void) => () => void): Response {
  if (open >= MAX_STREAMS)
    throw new HoldfastError("TOO_MANY_STREAMS", `${MAX_STREAMS} event streams are open.`, "Close one, or read api/v1/events.");
  open++;
  const encoder = new TextEncoder();
  let close = NOTHING;
  const body = new ReadableStream<Uint8Array>(
    {
      start(controller) {
        const send = (text: string) => {
          if ((controller.desiredSize ?? 0) <= 0) return close();
          controller.enqueue(encoder.encode(text));
        };
        const stop = start(send);
        const keepAlive = setInterval(() => send(":\n\n"), KEEP_ALIVE_MS);
        close = () => {
          close = NOTHING;
          open--;
          clearInterval(keepAlive);
          signal.removeEventListener("abort", end);
          stop();
          try {
            controller.close();
          } catch {
            // The client has gone.
          }
        };
        send(":\n\n");
      },
      cancel: () => close(),
    },
    new CountQueuingStrategy({ highWaterMark: MAX_BUFFERED_EVENTS }),
  );
  const end = () => close();
  signal.addEventListener("abort", end, { once: true });
  return new Response(body, { headers: HEADERS });
}
