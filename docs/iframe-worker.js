// Pages that are opened from a folder may not start workers. There, the search runs in a hidden frame.
if (location.protocol === "file:") {
  const STARTED = "the script of the worker has run";

  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.started = new Promise((done) => {
        this.hear = ({ source, data }) => {
          if (source !== this.frame.contentWindow) return;
          if (data === STARTED) done();
          else this.dispatchEvent(new MessageEvent("message", { data }));
        };
      });
      addEventListener("message", this.hear);
      document.body.append(this.frame);
      const inner = this.frame.contentDocument;
      inner.open();
      inner.write(
        `<script>self.postMessage = (data) => parent.postMessage(data, "*");</script>`,
        `<script src="${url}"></script>`,
        `<script>self.postMessage("${STARTED}");</script>`,
      );
      inner.close();
    }

    postMessage(data) {
      this.started.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      removeEventListener("message", this.hear);
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
