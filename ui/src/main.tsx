import { render } from "preact";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/panels.css";
import "./styles/tables.css";
import "./styles/forms.css";
import "./styles/details.css";
import "./styles/states.css";
import "./styles/charts.css";
import "./styles/media.css";
import { follow } from "./live.ts";
import { AuditPage } from "./pages/audit.tsx";
import { BuildPage } from "./pages/build.tsx";
import { BuildsPage } from "./pages/builds.tsx";
import { EnqueuePage } from "./pages/enqueue.tsx";
import { EventsPage } from "./pages/events.tsx";
import { JobPage } from "./pages/job.tsx";
import { JobsPage } from "./pages/jobs.tsx";
import { OverviewPage } from "./pages/overview.tsx";
import { QueuesPage } from "./pages/queues.tsx";
import { RecoveryPage } from "./pages/recovery.tsx";
import { SchedulesPage } from "./pages/schedules.tsx";
import { address } from "./router.ts";
import { type PageEntry, Shell } from "./shell.tsx";

const PAGES: PageEntry[] = [
  { page: "overview", title: "Overview", icon: "overview", key: "o", view: OverviewPage },
  { page: "jobs", title: "Jobs", icon: "jobs", key: "j", view: () => (address.value.id === null ? <JobsPage /> : <JobPage />) },
  { page: "queues", title: "Queues", icon: "queues", key: "q", view: QueuesPage },
  { page: "schedules", title: "Schedules", icon: "schedules", key: "s", view: SchedulesPage },
  {
    page: "builds",
    title: "Builds",
    icon: "builds",
    key: "b",
    view: () => (address.value.id === null ? <BuildsPage /> : <BuildPage />),
  },
  { page: "recovery", title: "Recovery", icon: "recovery", key: "r", view: RecoveryPage },
  { page: "events", title: "Events", icon: "events", key: "e", view: EventsPage },
  { page: "audit", title: "Audit", icon: "audit", key: "a", view: AuditPage },
  { page: "enqueue", title: "Enqueue", icon: null, view: EnqueuePage },
];

follow();
render(<Shell pages={PAGES} />, document.getElementById("app") as HTMLElement);
