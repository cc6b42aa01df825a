import type { Hono } from "hono";
import { exposition, familiesOf } from "../core/recovery/metrics.ts";
import type { Holdfast } from "../holdfast.ts";
import { alarmsOf } from "../operator/overview.ts";
import type { Env } from "./handler.ts";
import { Operator } from "../operator/operator.ts";

/** `/metrics` for Prometheus, and `/health/ready` for whatever routes requests. */
export function metricsRoutes(app: Hono<Env>, hf: Holdfast): void {
  const operator = new Operator(hf);
  app.get("/metrics", async (c) => {
    const text = exposition(familiesOf(await operator.metrics({})));
    return c.text(text, 200, { "content-type": "text/plain; version=0.0.4; charset=utf-8" });
  });
  app.get("/health/ready", async (c) => {
    const alarms = alarmsOf(await operator.overview());
    const grave = alarms.filter((alarm) => alarm.grave);
    return c.json({ ok: grave.length === 0, alarms }, grave.length === 0 ? 200 : 503);
  });
}
