import type { IncomingMessage, ServerResponse } from "node:http";
import { getRequestListener } from "@hono/node-server";
import { checkFunction, rejectSurplus } from "../core/text/options.ts";

/**
 * A fetch handler as a listener of `node:http`, for Express, Fastify and others. Mount it before anything that reads bodies.
 *
 * ```ts
 * app.all("/admin/jobs{/*path}", nodeHandler(handler(hf, { basePath: "/admin/jobs", authorize })));
 * ```
 */
export function nodeHandler(
  answer: (request: Request) => Promise<Response>,
): (request: IncomingMessage, response: ServerResponse) => Promise<void> {
  rejectSurplus(arguments, 1, "nodeHandler");
  checkFunction(answer, "The handler");
  const listen = getRequestListener(answer, { overrideGlobalObjects: false });
  return async (request, response) => {
    await listen(request, response);
  };
}
