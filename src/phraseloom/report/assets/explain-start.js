Explain.show(JSON.parse(document.getElementById("document").textContent), document.getElementById("explain"));
