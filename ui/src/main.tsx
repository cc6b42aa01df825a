import { render } from "preact";
import "./app.css";

render(<main>Holdfast</main>, document.getElementById("app") as HTMLElement);
