//! Tables of a library's functions, which is opened at run time.

/// Declares such a table, `Functions`, and how it is filled; the crate that uses it has
/// `libloading`. A name and a type that do not belong together are the writer's fault; layouts of
/// what is passed are compared in tests.
#[macro_export]
macro_rules! library_functions {
    ($($name:ident: fn($($of:ty),*) $(-> $to:ty)?;)*) => {
        /// The functions of the library that are used.
        #[allow(non_snake_case, reason = "names are the library's")]
        struct Functions {
            // SAFETY: for a caller: pointers are live and of the types that the library says.
            $($name: unsafe extern "C" fn($($of),*) $(-> $to)?,)*
        }

        impl Functions {
            /// Finds them all.
            fn find(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the types are those of the library's interface, which has not
                        // changed in its major version.
                        *unsafe { library.get(name) }?
                    },)*
                })
            }
        }
    };
}
