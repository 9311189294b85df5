// What links and forms alone cannot do.
"use strict";

// A chosen file fills a text field, so that a form sends only text.
for (const input of document.querySelectorAll("input[type=file][data-fills]")) {
  input.addEventListener("change", async () => {
    if (input.files.length) {
      document.getElementById(input.dataset.fills).value = await input.files[0].text();
    }
  });
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

// A part of the page that changes: it is loaded again until it says that it is complete.
for (const part of document.querySelectorAll("[data-reload]")) {
  const reload = async () => {
    try {
      const response = await fetch(part.dataset.reload);
      if (response.ok) {
        part.innerHTML = await response.text();
      }
      if (part.querySelector("[data-complete]")) {
        location.reload();
        return;
      }
    } catch {
      // The application was stopped; it may come back.
    }
    setTimeout(reload, 2000);
  };
  setTimeout(reload, 2000);
}
