import { randomBytes } from "node:crypto";
import { createServer, type Server } from "node:http";
import { type AddressInfo, isIP } from "node:net";
import { getRequestListener } from "@hono/node-server";
import { HoldfastError } from "../core/text/errors.ts";
import type { Holdfast } from "../holdfast.ts";
import { type Access, TokenAccess } from "./access.ts";
import { handler, type ServerOptions } from "./handler.ts";

export interface ServeOptions extends Omit<ServerOptions, "basePath"> {
  host?: string;
  port?: number;
  token?: string;
}

export interface Serving extends AsyncDisposable {
  address: string;
  /** Returns an address for a browser, with a one-time code; null with `authorize`. */
  newLoginAddress: () => string | null;
  token: string | null;
  close(): Promise<void>;
}

const LOOPBACK = new Set(["127.0.0.1", "::1", "localhost"]);

/** Serves the dashboard and the API by HTTP: on loopback with a random token, elsewhere only with a token or `authorize`. */
export async function serve(hf: Holdfast, options: ServeOptions = {}): Promise<Serving> {
  const { host = "127.0.0.1", port = 0, token, ...rest } = options;
  if (!LOOPBACK.has(host) && token === undefined && rest.authorize === undefined)
    throw new HoldfastError(
      "ACCESS_OPEN",
      `Other computers can reach ${host}, and no token was given.`,
      "Give a token: HOLDFAST_UI_TOKEN=… holdfast ui --host …, or serve on 127.0.0.1.",
    );
  const secret = token ?? randomBytes(32).toString("base64url");
  const tokens = rest.authorize === undefined ? new TokenAccess(secret) : null;
  const answer = handler(
    hf,
    tokens === null ? rest : { ...rest, authorize: (request) => requireToken(tokens.authorize(request)) },
  );
  let hosts: Set<string> | null = null;
  const fetch = async (request: Request) => {
    if (hosts !== null && !hosts.has(request.headers.get("host") ?? "")) return wrongHost();
    return tokens?.login(request) ?? answer(request);
  };
  const server = createServer(getRequestListener(fetch, { hostname: host })).listen(port, host);
  await new Promise<void>((resolve, reject) =>
    server.once("listening", resolve).once("error", (error) => reject(notServed(error))),
  );
  const { port: bound } = server.address() as AddressInfo;
  const name = isIP(host) === 6 ? `[${host}]` : host;
  // A page of another site whose name resolves to this machine (DNS rebinding) sends its own name as the host.
  if (LOOPBACK.has(host))
    hosts = new Set(
      [name, "localhost", "127.0.0.1", "[::1]"].flatMap((one) => (bound === 80 ? [one, `${one}:80`] : [`${one}:${bound}`])),
    );
  const address = `http://${name}:${bound}/`;
  const close = () => closeServer(server);
  return {
    address,
    newLoginAddress: () => (tokens === null ? null : `${address}?code=${tokens.newCode()}`),
    token: tokens === null ? null : secret,
    close,
    [Symbol.asyncDispose]: close,
  };
}

function notServed(cause: Error): HoldfastError {
  return new HoldfastError("NOT_SERVED", `The server could not start: ${cause.message}.`, "Give another host or port.", {
    cause,
  });
}

function requireToken(access: Access): Access {
  if (access.role !== "none") return access;
  throw new HoldfastError(
    "NO_ACCESS",
    "The token is missing or wrong.",
    "Send the token as `Authorization: Bearer TOKEN`, or open the address that `holdfast ui` printed.",
  );
}

function wrongHost(): Response {
  const message = "The request names another host than this server's.";
  const hint = "Open the address that `holdfast ui` printed.";
  return Response.json({ error: { code: "HOST_REFUSED", message, hint } }, { status: 421 });
}

async function closeServer(server: Server): Promise<void> {
  await new Promise<void>((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });
}
