//! `ironstar doctor`: what this machine is, how fast it reads memory, and which models fit.

mod cards;
mod cluster;
mod verdict;

use super::synth::{bytes_of, kind_of};
use crate::commands::gib;
use crate::failure::Failure;
use crate::flags::{Doctor, SynthMix};
use crate::{bandwidth, loading, print};
use ironstar_device::{
    CudaConfig, CudaDevice, Isa, cuda_devices, cuda_read_bandwidth, host_memory,
};
use ironstar_model::deepseek_v4::{known, tensor_specs};
use ironstar_model::{Model, Options, Shape};
use std::fmt::Write as _;

/// Contexts that are planned for, shortest first.
const CONTEXTS: [usize; 5] = [8192, 32_768, 131_072, 262_144, 1_048_576];
/// Where Linux says when it gives huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// What must be left over: the system's part of host memory, the driver's part of a card.
const HOST_RESERVE: u64 = 2 << 30;
/// The driver's context, compiled kernels and pieces of memory between buffers.
const CARD_RESERVE: u64 = 1 << 30;

/// The processor.
struct Host {
    cores: usize,
    /// Bytes that programs may use in all; unknown on some systems.
    memory: Option<u64>,
    /// Bytes a second, read by all cores together.
    bandwidth: f64,
    /// When the system gives huge pages, in its own word; `None` where it has none.
    huge_pages: Option<String>,
}

/// A card and what was measured on it.
struct Card {
    device: CudaDevice,
    bandwidth: Result<f64, String>,
}

/// One model in one mix.
struct Plan {
    model: &'static str,
    mix: &'static str,
    weights: u64,
    /// Bytes of one session and of scratch, for each of [`CONTEXTS`].
    beside: Vec<u64>,
}

/// Runs the command.
pub fn run(flags: &Doctor) -> Result<(), Failure> {
    if flags.test.cluster {
        return cluster::run(&flags.test, flags.json);
    }
    let host = Host {
        cores: loading::cores(),
        memory: host_memory().map(|memory| memory.most),
        bandwidth: bandwidth::of_host(loading::cores()).wall,
        huge_pages: std::fs::read_to_string(HUGE_PAGES).ok().as_deref().and_then(chosen),
    };
    let cards = match cuda_devices() {
        Ok(devices) => Ok(devices.into_iter().map(|device| measured(device, flags)).collect()),
        Err(error) => Err(error.to_string()),
    };
    let plans = plans()?;
    match flags.json {
        true => print(format!("{}\n", json(&host, &cards, &plans)).as_bytes()),
        false => print(text(&host, &cards, &plans).as_bytes()),
    }
}

fn measured(device: CudaDevice, flags: &Doctor) -> Card {
    let config = CudaConfig {
        device: device.index,
        cache: loading::kernel_cache(),
        nvrtc: flags.nvrtc.clone(),
        ..CudaConfig::default()
    };
    let bandwidth = cuda_read_bandwidth(&config).map_err(|error| error.to_string());
    Card { device, bandwidth }
}

fn plans() -> Result<Vec<Plan>, Failure> {
    let shapes: [(&str, Shape); 2] =
        [("DeepSeek V4 Flash", known::flash()), ("DeepSeek V4 PRO", known::pro())];
    let mixes = [("q2", SynthMix::Q2), ("q4", SynthMix::Q4), ("mxfp4", SynthMix::Mxfp4)];
    let mut plans = Vec::new();
    for (model, shape) in &shapes {
        let beside: Vec<u64> = CONTEXTS
            .iter()
            .map(|context| {
                let lines = Model::memory_plan(shape, *context, &Options::default(), false);
                lines.iter().map(|line| line.bytes).sum()
            })
            .collect();
        for (mix, formats) in mixes {
            let mut weights = 0;
            for spec in tensor_specs(shape) {
                weights += bytes_of(&spec, kind_of(&spec, formats))?;
            }
            plans.push(Plan { model, mix, weights, beside: beside.clone() });
        }
    }
    Ok(plans)
}

impl Plan {
    /// The longest context that fits into so many bytes.
    fn context(&self, available: u64) -> Option<usize> {
        let fits = |beside: &u64| self.weights + beside <= available;
        CONTEXTS.iter().zip(&self.beside).filter(|(_, b)| fits(b)).map(|(c, _)| *c).next_back()
    }

    /// In words.
    fn verdict(&self, available: Option<u64>) -> String {
        let Some(available) = available else {
            return "memory unknown".into();
        };
        match self.context(available) {
            Some(context) => format!("fits with {} K tokens", context / 1024),
            None => {
                let wanted = self.weights + self.beside[0];
                format!("needs {} more", gib(wanted.saturating_sub(available)))
            }
        }
    }
}

impl Host {
    fn available(&self) -> Option<u64> {
        Some(self.memory?.saturating_sub(HOST_RESERVE))
    }
}

impl Card {
    fn available(&self) -> u64 {
        self.device.memory_free.saturating_sub(CARD_RESERVE)
    }
}

fn text(host: &Host, cards: &Result<Vec<Card>, String>, plans: &[Plan]) -> String {
    let mut text = String::new();
    let sets: Vec<&str> = Isa::available().map(Isa::name).collect();
    let _ = writeln!(text, "Processor");
    let _ = writeln!(
        text,
        "  instruction set   {} (this machine has {})",
        Isa::best().name(),
        sets.join(", ")
    );
    let _ = writeln!(text, "  cores             {}", host.cores);
    let memory = host.memory.map_or_else(|| "unknown".into(), gib);
    let _ = writeln!(text, "  memory            {memory}");
    let _ = writeln!(text, "  read bandwidth    {}", rate(host.bandwidth));
    let _ = writeln!(text, "  pages             {}", pages(host.huge_pages.as_deref()));
    match cards {
        Err(why) => {
            let _ = writeln!(text, "\nCUDA\n  {why}");
        }
        Ok(cards) => {
            for card in cards {
                card_text(&mut text, card);
            }
        }
    }
    let _ = writeln!(text, "\nModels, weights, and the longest context that fits");
    for plan in plans {
        let name = format!("{} {}", plan.model, plan.mix);
        let weights = gib(plan.weights);
        let on_host = plan.verdict(host.available());
        let _ = write!(text, "  {name:<24} {weights:>12}   processor: {on_host}");
        for card in cards.iter().flatten() {
            let verdict = plan.verdict(Some(card.available()));
            let _ = write!(text, "; cuda {}: {verdict}", card.device.index);
        }
        text.push('\n');
    }
    text
}

fn card_text(text: &mut String, card: &Card) {
    let device = &card.device;
    let (major, minor) = device.capability;
    let bandwidth = match &card.bandwidth {
        Ok(bandwidth) => rate(*bandwidth),
        Err(why) => format!("not measured: {why}"),
    };
    let (free, total) = (gib(device.memory_free), gib(device.memory_total));
    let _ = writeln!(text, "\nCUDA {}: {}", device.index, device.name);
    let _ = writeln!(text, "  capability        {major}.{minor}");
    let _ = writeln!(text, "  driver            for CUDA {}", device.driver);
    let _ = writeln!(text, "  multiprocessors   {}", device.multiprocessors);
    let _ = writeln!(text, "  memory            {free} free of {total}");
    let _ = writeln!(text, "  read bandwidth    {bandwidth}");
    if device.unified {
        let how = match device.reads_mapped {
            true => {
                "float weights are read where the file is mapped, all others are copied; of a file \
                 that `ironstar pack` made none are"
            }
            false => "all weights are copied",
        };
        let _ = writeln!(text, "  shares its memory with the processor: {how}");
    }
}

fn json(host: &Host, cards: &Result<Vec<Card>, String>, plans: &[Plan]) -> serde_json::Value {
    let card_json = |card: &Card| {
        serde_json::json!({
            "index": card.device.index,
            "name": card.device.name,
            "capability": format!("{}.{}", card.device.capability.0, card.device.capability.1),
            "driver": card.device.driver,
            "multiprocessors": card.device.multiprocessors,
            "memory_bytes": card.device.memory_total,
            "memory_free_bytes": card.device.memory_free,
            "unified": card.device.unified,
            "reads_mapped": card.device.reads_mapped,
            "read_bytes_per_second": card.bandwidth.as_ref().ok(),
            "error": card.bandwidth.as_ref().err(),
        })
    };
    let plan_json = |plan: &Plan| {
        let on_cards: Vec<Option<usize>> =
            cards.iter().flatten().map(|card| plan.context(card.available())).collect();
        serde_json::json!({
            "model": plan.model,
            "mix": plan.mix,
            "weight_bytes": plan.weights,
            "processor_context": host.available().and_then(|bytes| plan.context(bytes)),
            "cuda_context": on_cards,
        })
    };
    serde_json::json!({
        "processor": {
            "instruction_set": Isa::best().name(),
            "available": Isa::available().map(Isa::name).collect::<Vec<_>>(),
            "cores": host.cores,
            "memory_bytes": host.memory,
            "read_bytes_per_second": host.bandwidth,
            "huge_pages": host.huge_pages,
        },
        "cuda": cards.as_ref().map(|c| c.iter().map(card_json).collect::<Vec<_>>()).ok(),
        "cuda_error": cards.as_ref().err(),
        "models": plans.iter().map(plan_json).collect::<Vec<_>>(),
    })
}

/// The choice in brackets of a file of the kernel, as in `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// What weights lie on. They are copied when they are loaded, so all their pages are there before
/// the first token.
fn pages(huge: Option<&str>) -> String {
    match huge {
        Some("never") => "small (this system gives no huge ones: \"never\")".into(),
        Some(word) => format!("huge, which are asked for (this system: \"{word}\")"),
        None => "those of this system".into(),
    }
}

fn rate(bytes_per_second: f64) -> String {
    format!("{:.1} GB/s", bytes_per_second / 1e9)
}

#[cfg(test)]
mod tests {
    use super::{CONTEXTS, chosen, pages, plans};

    #[test]
    fn pages_are_named_by_what_the_system_chose() {
        let of = |text: &str| pages(chosen(text).as_deref());
        assert!(of("always [madvise] never\n").starts_with("huge, which are asked for"));
        assert!(of("always madvise [never]\n").starts_with("small"));
        assert!(of("").starts_with("those of"));
    }

    /// A card of 141 GB holds the 2-bit Flash with its longest context, and no 4-bit one.
    #[test]
    fn what_fits_an_h200() {
        let plans = plans().expect("known shapes have plans");
        let available = 139 << 30;
        let find = |model: &str, mix: &str| {
            let plan = plans.iter().find(|p| p.model.ends_with(model) && p.mix == mix);
            plan.expect("every shape has every mix").context(available)
        };
        assert_eq!(find("Flash", "q2"), CONTEXTS.last().copied());
        assert_eq!(find("Flash", "q4"), None);
        assert_eq!(find("PRO", "q2"), None);
    }
}
