//! Several cards of one machine on one model: this process drives them all, a thread a card.
//!
//! Rank 0 is the caller's: its backend is given back, and leads the others until it is dropped.
//! Sums go through the cards' memory where a test at the start shows that this works, else through
//! the host's ([`Gpu::with_peers`]).

use crate::backend::{RESERVE_BYTES, cuda_config, gib, gpu_config};
use crate::{EngineOptions, Error};
use ironstar_device::{
    Backend, CudaConfig, CudaDevice, Error as DeviceError, Exchange, ExchangeError, Gpu,
    KernelTimes, Local, LocalGroup, Nccl, Part, Peers, Timeline, cuda_devices,
};
use ironstar_gguf::Gguf;
use ironstar_model::deepseek_v4::{SparkShape, drafter_specs, rank_plan, tensor_specs};
use ironstar_model::{Followed, Model, Shape};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a gate inside a kernel waits.
const GATE: Duration = Duration::from_secs(10);
/// How long the threads wait for each other, also inside NVIDIA's library, which does not say for
/// which gate: compiling kernels at the first start takes seconds, and so does a long step.
const THREADS: Duration = Duration::from_secs(120);

/// Opens model and drafter once more: every thread maps the files itself.
pub type OpenFiles = dyn Fn() -> Result<(Gguf, Option<Gguf>), Error> + Send + Sync;

/// What carries the sums of cards of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumsBy {
    /// The cards, which write into each other's memory.
    Peer,
    /// NVIDIA's library, which gathers parts inside the graph of a step.
    Nccl,
    /// The host, at which every step stops.
    Host,
}

/// Makes the device of a rank.
type MakeGpu = dyn Fn(usize) -> Result<Gpu, DeviceError> + Send + Sync;

/// Cards that will share a model.
#[derive(Clone)]
pub struct Cards {
    ranks: usize,
    make: Arc<MakeGpu>,
    peers: Option<Peers>,
    nccl: Option<Nccl>,
    /// Why sums do not go through the cards' memory.
    refused: Option<String>,
    /// What each rank's card has, where that is known.
    rooms: Vec<Room>,
}

/// A rank's card and how much of it nobody has taken.
#[derive(Clone, Debug)]
struct Room {
    number: u32,
    name: String,
    free: u64,
}

impl Room {
    fn of(card: &CudaDevice) -> Room {
        Room { number: card.index, name: card.name.clone(), free: card.memory_free }
    }

    /// What a rank will hold there, for people.
    fn line(&self, rank: usize, bytes: u64) -> String {
        let Room { number, name, free } = self;
        format!(
            "rank {rank} on card {number} ({name}) will hold {} MiB of weights; {} MiB are free",
            bytes >> 20,
            free >> 20
        )
    }
}

impl Cards {
    /// NVIDIA cards by their numbers, one a rank; one may be named for several.
    pub fn cuda(devices: &[u32], options: &EngineOptions, by: SumsBy) -> Result<Cards, Error> {
        Self::cuda_timed(devices, options, by, None, None)
    }

    /// The same, with the times or starts of rank 0's kernels, which slows that card.
    pub fn cuda_timed(
        devices: &[u32],
        options: &EngineOptions,
        by: SumsBy,
        times: Option<KernelTimes>,
        timeline: Option<Timeline>,
    ) -> Result<Cards, Error> {
        let all = cuda_devices()?;
        let found = all.len();
        if let Some(card) = devices.iter().find(|d| usize::try_from(**d).is_ok_and(|d| d >= found))
        {
            let wanted = format!("one of the {found} that the driver sees, counted from 0");
            return Err(DeviceError::Unsupported { found: format!("card {card}"), wanted }.into());
        }
        let nccl = (by == SumsBy::Nccl).then(|| Nccl::load(None, devices.len())).transpose()?;
        let twice = devices.iter().enumerate().find(|(at, card)| devices[..*at].contains(card));
        let (peers, refused) = match (by == SumsBy::Peer, twice) {
            (false, _) => (None, None),
            // Calls of one rank would wait for kernels of the other that wait for it.
            (true, Some((_, card))) => {
                let reason = format!(
                    "card {card} has several ranks of one process; a process each (--transport \
                     shm) can have gates inside its graph"
                );
                (None, Some(reason))
            }
            (true, None) => match Peers::cuda(devices) {
                Ok(peers) => (Some(peers), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let config = gpu_config(options);
        let cards: Vec<_> = devices.iter().map(|card| cuda_config(options, *card)).collect();
        let make = move |rank: usize| {
            let times = times.clone().filter(|_| rank == 0);
            let timeline = timeline.clone().filter(|_| rank == 0);
            Gpu::cuda(&CudaConfig { times, timeline, ..cards[rank].clone() }, config)
        };
        let card = |number: &u32| usize::try_from(*number).ok().and_then(|at| all.get(at));
        // All of them are there, as was seen above.
        let rooms = devices.iter().filter_map(card).map(Room::of).collect();
        Ok(Cards { ranks: devices.len(), make: Arc::new(make), peers, nccl, refused, rooms })
    }

    /// Devices that somebody else makes: tests.
    #[must_use]
    pub fn made_by(ranks: usize, make: Arc<MakeGpu>, peers: Option<Peers>) -> Cards {
        Cards { ranks, make, peers, nccl: None, refused: None, rooms: Vec::new() }
    }

    /// Bytes of weights that each card will hold of a model and its drafter, or why they cannot be
    /// shared so.
    pub fn plan(&self, gguf: &Gguf, drafter: Option<&Gguf>) -> Result<Vec<u64>, Error> {
        let parts = parts((gguf, drafter), self.ranks)?;
        check_rooms(&self.rooms, &parts, &|ranks| parts_most((gguf, drafter), ranks))?;
        Ok(parts)
    }

    /// The same for people, a line a card.
    pub fn plan_lines(&self, gguf: &Gguf, drafter: Option<&Gguf>) -> Result<Vec<String>, Error> {
        let parts = self.plan(gguf, drafter)?;
        let line = |(rank, bytes): (usize, u64)| match self.rooms.get(rank) {
            None => format!("rank {rank} will hold {} MiB of weights", bytes >> 20),
            Some(room) => room.line(rank, bytes),
        };
        Ok(parts.into_iter().enumerate().map(line).collect())
    }

    /// Rank 0 of the cards. The others open the files, load their parts and follow; the model is to
    /// be loaded on the backend with the same options. `note` hears what is worth knowing.
    pub fn lead(
        self,
        open: &Arc<OpenFiles>,
        options: &EngineOptions,
        note: &mut dyn FnMut(&str),
    ) -> Result<Box<dyn Backend>, Error> {
        if let Some(reason) = &self.refused {
            note(&format!("sums of cards go through the host: {reason}"));
        }
        let mut group = LocalGroup::whole(self.ranks, THREADS).into_iter();
        let local = group.next().expect("there is rank 0");
        let mut threads = Vec::new();
        for local in group {
            let (cards, open, options) = (self.clone(), open.clone(), options.clone());
            let name = format!("card {}", local.rank());
            let thread = std::thread::Builder::new().name(name);
            let thread = thread.spawn(move || cards.follow(local, &*open, &options));
            threads.push(thread.map_err(|error| DeviceError::Device {
                device: "this machine".into(),
                doing: "starting a card's thread",
                found: error.to_string(),
                advice: "allow more threads",
            })?);
        }
        let (gpu, refused) = self.card(0, Box::new(local.keeping(Crew(threads))))?;
        if let Some(reason) = refused {
            note(&format!("sums of cards go through the host: {reason}"));
        }
        Ok(Box::new(gpu))
    }

    /// The device of a rank in its group.
    fn card(
        &self,
        rank: usize,
        mut exchange: Box<dyn Exchange>,
    ) -> Result<(Gpu, Option<String>), DeviceError> {
        let gpu = (self.make)(rank).inspect_err(|error| exchange.abort(&error.to_string()))?;
        let gpu = gpu.with_exchange(exchange);
        match (&self.peers, &self.nccl) {
            (Some(peers), _) => gpu.with_peers(peers, GATE),
            (None, Some(nccl)) => gpu.with_nccl(nccl, THREADS),
            (None, None) => Ok((gpu, None)),
        }
    }

    /// A rank above 0, until rank 0 is gone. What breaks is told to the group.
    fn follow(&self, local: Local, open: &OpenFiles, options: &EngineOptions) {
        let rank = local.rank();
        let Ok((mut gpu, _)) = self.card(rank, Box::new(local)) else { return };
        // After a panic the device is only used to tell of it.
        let followed = catch_unwind(AssertUnwindSafe(|| follow(&mut gpu, open, options)));
        let reason = match followed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its thread panicked, which is a bug of ours".to_owned(),
        };
        if let Some(exchange) = gpu.exchange() {
            exchange.abort(&reason);
        }
    }
}

/// Bytes of weights of each of so many ranks.
fn parts((gguf, drafter): (&Gguf, Option<&Gguf>), ranks: usize) -> Result<Vec<u64>, Error> {
    let shape = Shape::from_metadata(gguf.metadata())?;
    let mut files = vec![(gguf, tensor_specs(&shape))];
    if let Some(drafter) = drafter {
        let specs = match SparkShape::from_gguf(drafter, &shape)? {
            Some(spark) => spark.specs_in(drafter, &shape),
            None => drafter_specs(&shape),
        };
        files.push((drafter, specs));
    }
    let bytes = |rank| -> Result<u64, Error> {
        let mut sum = 0;
        for (file, specs) in &files {
            let lines = rank_plan(file, &shape, specs, Part { rank, ranks })?;
            sum += lines.iter().map(|line| line.bytes).sum::<u64>();
        }
        Ok(sum)
    };
    (0..ranks).map(bytes).collect()
}

/// The largest part of so many ranks, if the model can be shared by them.
fn parts_most(files: (&Gguf, Option<&Gguf>), ranks: usize) -> Option<u64> {
    parts(files, ranks).ok()?.into_iter().max()
}

/// Refuses parts that the cards cannot hold, with the number of cards that could.
fn check_rooms(
    rooms: &[Room],
    parts: &[u64],
    most_of: &dyn Fn(usize) -> Option<u64>,
) -> Result<(), Error> {
    for Room { number, name, free } in rooms {
        let mine = rooms.iter().zip(parts).filter(|(room, _)| room.number == *number);
        let wanted = mine.map(|(_, part)| *part).sum::<u64>().saturating_add(RESERVE_BYTES);
        if wanted <= *free {
            continue;
        }
        let more = [2, 4, 8].into_iter().filter(|ranks| *ranks > parts.len());
        let enough = more.filter_map(|ranks| Some((ranks, most_of(ranks)?)));
        let enough = enough.map(|(ranks, part)| (ranks, part.saturating_add(RESERVE_BYTES)));
        let advice = match enough.into_iter().find(|(_, part)| part <= free) {
            Some((ranks, part)) => {
                format!("{ranks} such cards (--ranks {ranks}) need {} each", gib(part))
            }
            None => "use a smaller mix, or free memory of the card".to_owned(),
        };
        let found = format!("card {number}, {name}, of which {} are free,", gib(*free));
        let wanted = format!(
            "its part of the model needs {} with the room for states; {advice}",
            gib(wanted)
        );
        return Err(DeviceError::Unsupported { found, wanted }.into());
    }
    Ok(())
}

fn follow(gpu: &mut Gpu, open: &OpenFiles, options: &EngineOptions) -> Result<(), Error> {
    let (gguf, drafter) = open()?;
    let mut model = Model::load(&gguf, drafter.as_ref(), gpu, options.model(), &mut |_| {})?;
    // A rank that was lost comes to the next epoch as long as rank 0 is there.
    let mut on_event = |event: Followed| match event {
        Followed::Broken(_) | Followed::Epoch(_) => true,
        Followed::Waiting(error) => !matches!(error, ExchangeError::Lost { .. }),
    };
    Ok(model.follow(gpu, &mut on_event)?)
}

/// The threads of the other ranks, which end when rank 0 has left the group.
struct Crew(Vec<JoinHandle<()>>);

impl Drop for Crew {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // Its end, whatever it was, has been told to the group.
            let _ended = thread.join();
        }
    }
}

mod process;
#[cfg(test)]
mod tests;

pub use process::ProcessCard;
