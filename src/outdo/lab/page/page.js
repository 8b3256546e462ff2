"use strict";

// Sliders: every position's curves were computed in Python and lie in the page; here they are only shown.
const data = document.getElementById("toys");

function show(toy, element, position) {
  const frame = toy.frames[position];
  const slider = element.querySelector("input");
  slider.setAttribute("aria-valuetext", `${toy.symbol} = ${toy.values[position]}`);
  element.querySelector("output").textContent = frame.sentence;
  element.querySelectorAll(".chart").forEach((chart, index) => {
    const traces = frame.panels[index];
    const entries = traces.filter((trace) => trace.showlegend !== false).length;
    // On a phone every entry of the legend has a line of its own.
    const below = 62 + 20 * (entries < 2 ? 0 : chart.clientWidth < 360 ? entries : Math.ceil(entries / 2));
    chart.style.height = `${270 + below}px`;
    const { title, xaxis, yaxis, ...rest } = toy.layouts[index];
    const named = (axis) => ({ ...axis, title: { ...axis.title, font: { size: 13 }, standoff: 8 } });
    Plotly.react(
      chart,
      traces,
      {
        ...rest,
        xaxis: named(xaxis),
        yaxis: named(yaxis),
        title: { ...title, font: { size: 14 }, y: 0.98, yanchor: "top" },
        font: { family: "system-ui, sans-serif", size: 13 },
        height: 270 + below,
        margin: { l: 62, r: 12, t: 34, b: below },
        legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0.5, xanchor: "center" },
        showlegend: entries > 1,
        paper_bgcolor: "transparent",
        plot_bgcolor: "transparent",
        dragmode: false,
      },
      { displayModeBar: false, responsive: true },
    );
  });
}

for (const toy of data ? JSON.parse(data.textContent) : []) {
  const element = document.querySelector(`[data-toy="${toy.name}"]`);
  const slider = element.querySelector("input");
  slider.addEventListener("input", () => show(toy, element, Number(slider.value)));
  show(toy, element, Number(slider.value));
}

// On paper a chart keeps the size it was drawn at, and the style sheet scales it.
const charts = [...document.querySelectorAll(".chart")];
addEventListener("beforeprint", () => charts.forEach((chart) => (chart.style.flex = `0 0 ${chart.offsetWidth}px`)));
addEventListener("afterprint", () => charts.forEach((chart) => (chart.style.flex = "")));

// Quiz: the first choice of a question counts; later ones may still be tried.
const questions = [...document.querySelectorAll(".quiz fieldset")];
const score = document.querySelector(".score");
const again = document.querySelector(".again");

function choose(question, button) {
  const right = button.dataset.right === "yes";
  question.dataset.first ??= right ? "right" : "wrong";
  button.classList.add(right ? "right" : "wrong");
  button.querySelector(".sign").textContent = right ? "✓ " : "✗ ";
  const verdict = document.createElement("strong");
  verdict.textContent = right ? "Right. " : "Not right. ";
  verdict.className = right ? "pass" : "fail";
  const sentence = document.createElement("p");
  sentence.append(verdict, button.nextElementSibling.content.cloneNode(true));
  const evidence = document.createElement("p");
  evidence.append(question.querySelector(".evidence").content.cloneNode(true));
  question.querySelector(".feedback").replaceChildren(sentence, evidence);
  tell();
}

function tell() {
  const answered = questions.filter((question) => question.dataset.first);
  const right = answered.filter((question) => question.dataset.first === "right").length;
  again.hidden = answered.length === 0;
  score.textContent =
    answered.length === questions.length
      ? `Done: ${right} of ${questions.length} right at the first try.`
      : answered.length > 0
        ? `${answered.length} of ${questions.length} answered, ${right} right at the first try.`
        : "";
}

for (const question of questions) {
  for (const button of question.querySelectorAll("button")) {
    button.addEventListener("click", () => choose(question, button));
  }
}

again?.addEventListener("click", () => {
  for (const question of questions) {
    delete question.dataset.first;
    question.querySelector(".feedback").replaceChildren();
    for (const button of question.querySelectorAll("button")) {
      button.classList.remove("right", "wrong");
      button.querySelector(".sign").textContent = "";
    }
  }
  tell();
  questions[0].querySelector("button").focus();
});
