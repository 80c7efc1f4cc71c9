// Browsers refuse to start the worker of the search if a page is opened from disk: run its script in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inside.document.createElement("script")
      script.src = new URL(address, location).href
      this.ready = new Promise((done) => (script.onload = done))
      this.inside.document.body.append(script)
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
  }
}
