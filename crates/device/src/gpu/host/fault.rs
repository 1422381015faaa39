//! Faults that tests plant in a host device.

use std::sync::{Arc, Mutex, PoisonError};

/// Launches until one fails, and whether all behind it do.
#[derive(Clone, Copy, Debug)]
struct Plan {
    after: u64,
    forever: bool,
}

/// A fault that can be planted while the device is used.
#[derive(Clone, Debug, Default)]
pub struct HostFault(Arc<Mutex<Option<Plan>>>);

impl HostFault {
    /// After so many launches one fails, and with `forever` all that follow.
    pub fn plant(&self, after: u64, forever: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Plan { after, forever });
    }

    /// Whether it struck, if it was to strike once.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Whether this launch fails.
    pub(super) fn strikes(&self) -> bool {
        let mut planted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *planted {
            None => false,
            Some(Plan { after: 0, forever }) => {
                if !*forever {
                    *planted = None;
                }
                true
            }
            Some(plan) => {
                plan.after -= 1;
                false
            }
        }
    }
}
